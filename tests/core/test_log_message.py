"""Tests of asyncpool/_core/logs/log_message.py."""

from __future__ import annotations

import logging

import pytest

from asyncpool._core.logs.log_message import INFO, LogMessage

SOLD = LogMessage("sold", INFO, "%(pool)s has sold %(count)d %(what)s", "pool count")
LOGGER = logging.getLogger("tests.log_message")


def test_text_and_data_are_of_the_same_values(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER.name)
    SOLD.log(LOGGER, {"pool": "shop", "count": 3}, what="cakes")
    [record] = caplog.records
    assert record.getMessage() == "shop has sold 3 cakes"
    assert (record.levelno, record.funcName) == (
        logging.INFO,
        "test_text_and_data_are_of_the_same_values",
    )
    data = vars(record)
    assert (data["message_id"], data["pool"], data["count"]) == ("sold", "shop", 3)
    assert "what" not in data


def test_a_message_without_data(caplog: pytest.LogCaptureFixture) -> None:
    LogMessage("empty", logging.WARNING, "100 % of nothing").log(LOGGER, {})
    assert caplog.messages == ["100 % of nothing"]


def test_what_it_shows_beside_the_text(caplog: pytest.LogCaptureFixture) -> None:
    error = ArithmeticError("of a test")
    for given in ({"error": error}, {"trace": "a trace"}, {"stack": "a stack"}):
        LogMessage("bad", logging.ERROR, "bad").log(LOGGER, {}, **given)
    first, second, third = caplog.records
    assert first.exc_info is not None
    assert first.exc_info[1] is error
    assert second.exc_text == "a trace"
    assert third.stack_info == "a stack"


class Wrong:
    """Has no text."""

    def __str__(self) -> str:
        raise ArithmeticError("no text")


class Raising(logging.Filter):
    """Formats the record."""

    def filter(self, record: logging.LogRecord) -> bool:
        return bool(record.getMessage())


def test_nothing_is_made_if_the_level_is_off_and_no_filter_hurts() -> None:
    raising = Raising()
    LOGGER.addFilter(raising)
    try:
        for level in (logging.WARNING, logging.INFO):
            LOGGER.setLevel(level)
            SOLD.log(LOGGER, {"pool": "shop", "count": 3}, what=Wrong())
    finally:
        LOGGER.setLevel(logging.NOTSET)
        LOGGER.removeFilter(raising)
