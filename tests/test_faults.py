"""Every fault can still be planted: whoever remakes a part ports its faults."""

from __future__ import annotations

from itertools import chain, islice

from tests.faults.corpus import ROOT, Fault, defects, mutants


def test_every_fault_applies_and_its_tests_are_there() -> None:
    found = chain(defects(), islice(mutants(), 0, None, 100))
    assert [f"{fault.id}: {why}" for fault in found if (why := _trouble(fault))] == []


def _trouble(fault: Fault) -> str:
    try:
        fault.planted()
    except (ValueError, SyntaxError) as error:
        return str(error)
    for test in fault.tests:
        file, _, name = test.partition("::")
        name = name.rpartition("::")[2]  # behind its class
        if f"def {name}(" not in (ROOT / file).read_text() and name:
            return f"there is no {test}"
    return ""
