"""The questions, in the order in which they are asked and answered."""

from benchmarks.base import Question
from benchmarks.questions import (
    bandwidth,
    latency,
    memory,
    recovery,
    stall,
    start,
    throughput,
)

QUESTIONS: dict[str, Question] = {
    module.QUESTION.name: module.QUESTION
    for module in (latency, throughput, start, recovery, bandwidth, memory, stall)
}
