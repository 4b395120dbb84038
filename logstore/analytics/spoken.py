"""Messages in stored values, decoded when they are asked for and not held longer than needed."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from logstore.analytics.messages import Place, Plain, Said, said_in
from logstore.memory import return_freed
from logstore.records import Record
from logstore.structural import decode
from logstore.values import ValueDecoder

_KEPT_BYTES = 16 << 20
"""So many bytes of values, as the serde wrote them, are kept decoded."""
_KEPT_VALUES = 2
"""So many are kept however large they are: a message is compared with what it was before."""


class MessageReader:
    """Reads the messages of one thread's records, the most recently used of them only once."""

    def __init__(self, decoder: ValueDecoder) -> None:
        """Read what a decoder decodes."""
        self._decoder = decoder
        self._kept: OrderedDict[int, tuple[Said, int]] = OrderedDict()
        """By the identity of the record, which `Said` keeps alive."""
        self._kept_bytes = 0

    def load(self, record: Record) -> tuple[str, bytes]:
        """The serde's tag and bytes of a record's value.

        Raises:
            ReadError: something that the value is rebuilt from is missing.
        """
        ((type_, data),) = self._decoder.load([record])
        return type_, data

    def decode(self, record: Record) -> Any:
        """A record's value as plain data.

        Raises:
            FormatError: it cannot be decoded.
            ReadError: something that it is rebuilt from is missing.
        """
        return decode(*self.load(record))

    def said(self, record: Record) -> Said:
        """The messages in a record's value. See `decode`."""
        known = self._kept.get(id(record))
        if known is not None:
            self._kept.move_to_end(id(record))
            return known[0]
        type_, data = self.load(record)
        if len(data) > _KEPT_BYTES:
            self._decoder.forget()  # decoding takes as much again
            return_freed()
        said = said_in(record, decode(type_, data))
        self._keep(said, len(data))
        return said

    def message(self, place: Place) -> Plain:
        """One message. See `decode`."""
        return self.said(place.record).messages[place.number]

    def _keep(self, said: Said, size: int) -> None:
        self._kept[id(said.record)] = (said, size)
        self._kept_bytes += size
        while self._kept_bytes > _KEPT_BYTES and len(self._kept) > _KEPT_VALUES:
            _, (_, dropped) = self._kept.popitem(last=False)
            self._kept_bytes -= dropped
