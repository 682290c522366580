"""The functions of a pool, in a table for each format in which their calls travel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.pickling.functions import FunctionTable
from asyncpool._core.policies.job_options import JobOptions

if TYPE_CHECKING:  # few pools have a codec
    from asyncpool._core.codec.data_only import DataFunctionTable, DataOnly
    from asyncpool._core.codec.formats import Format

T = TypeVar("T", bound=FunctionTable)

# How many formats the pool remembers the functions of.
_MOST = 16


class FunctionTables:
    """The functions of one pool.

    Args:
        totals: Where their jobs are counted.
        data: What the pool allows, if it is data only.
        table: The class of the usual table, if it is not data only.

    Attributes:
        usual: Those of jobs without a codec of their own.
    """

    def __init__(
        self,
        totals: FunctionTotals,
        data: DataOnly | None,
        table: type[FunctionTable] = FunctionTable,
    ) -> None:
        self._totals = totals
        self._data = data
        self._by_format: dict[Format, FunctionTable] = {}
        self.usual = table(self._totals)
        if self._data is not None:
            self.usual = self._table_for(self._data, self._data.how)
            self._by_format[self._data.how] = self.usual

    @property
    def codec_name(self) -> str:
        """What the codec of the pool is called."""
        return "pickle" if self._data is None else self._data.how.name

    def packed(self, make: Callable[[FunctionTotals, FunctionTable], T]) -> T:
        """Return what *make* makes: a table whose numbers continue those of this pool."""
        return make(self._totals, self.usual)

    def of(self, options: JobOptions) -> FunctionTable:
        """Return the functions of jobs with these options."""
        how = options.codec
        if how is None:
            return self.usual
        if isinstance(how, FunctionTable):  # an agent's: its calls are packed already
            return how
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
