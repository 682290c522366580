"""The trials, in the order in which servers go through them."""

from benchmarks.cluster.base import Trial
from benchmarks.cluster.trials import (
    balance,
    deploy,
    kills,
    master,
    reloads,
    speed,
    storms,
)

TRIALS: dict[str, Trial] = {
    module.TRIAL.name: module.TRIAL
    for module in (speed, balance, reloads, kills, storms, deploy, master)
}
