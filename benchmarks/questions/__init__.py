"""The questions, in the order in which they are asked and answered."""

from benchmarks.base import Question
from benchmarks.questions import (
    bandwidth,
    constant,
    coroutines,
    executor,
    idle,
    imports,
    journal,
    latency,
    maps,
    memory,
    mixed,
    queue,
    real_work,
    recovery,
    shared,
    stall,
    start,
    streams,
    throughput,
    timeouts,
)

QUESTIONS: dict[str, Question] = {
    module.QUESTION.name: module.QUESTION
    for module in (
        latency,
        throughput,
        maps,
        journal,
        streams,
        coroutines,
        executor,
        bandwidth,
        recovery,
        start,
        memory,
        constant,
        stall,
        real_work,
        mixed,
        queue,
        shared,
        idle,
        timeouts,
        imports,
    )
}
