"""The functions of a pool, in a table for each format in which their calls travel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.state.pool_state import PoolState

if TYPE_CHECKING:  # few pools have a codec
    from asyncpool._core.codec.data_only import DataFunctionTable, DataOnly
    from asyncpool._core.codec.formats import Format

# How many formats the pool remembers the functions of.
_MOST = 16


class FunctionTables:
    """The functions of one pool.

    Args:
        state: The pool's state.

    Attributes:
        usual: Those of jobs without a codec of their own.
    """

    def __init__(self, state: PoolState) -> None:
        self._totals = state.registry.figures.functions
        self._data = state.config.data
        self._by_format: dict[Format, FunctionTable] = {}
        self.usual = FunctionTable(self._totals)
        if self._data is not None:
            self.usual = self._table_for(self._data, self._data.how)
            self._by_format[self._data.how] = self.usual

    def of(self, options: JobOptions) -> FunctionTable:
        """Return the functions of jobs with these options."""
        how = options.codec
        if how is None:
            return self.usual
        found = self._by_format.get(how)
        if found is None:
            assert self._data is not None  # only then there is such an option
            if len(self._by_format) >= _MOST:  # a view with a new codec for each job
                oldest = next(one for one in self._by_format if one != self._data.how)
                del self._by_format[oldest]
            found = self._table_for(self._data, how, self.usual)
            self._by_format[how] = found
        return found

    def _table_for(
        self, data: DataOnly, how: Format, usual: FunctionTable | None = None
    ) -> DataFunctionTable:
        from asyncpool._core.codec.data_only import DataFunctionTable  # noqa: PLC0415 - see above

        return DataFunctionTable(self._totals, data, how, usual)
