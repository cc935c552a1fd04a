"""What crosses between clients and the engine: msgpack structs, tagged by type. No pickle.

    client ──► engine   TokenTable, AddRequest, Abort, GetStats, Shutdown
    engine ──► client   Starting, Ready, Outputs, Refused, EngineStats, Dead

Every `AddRequest` is answered by exactly one terminal message: a `Refused`, or the one `Delta` of
its id whose `finish` is not RUNNING; `Dead` ends all of them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from octavo.base.errors import (
    CapacityError,
    ContextLengthError,
    EngineError,
    QueueFullError,
    RequestError,
)
from octavo.base.sampling_params import SamplingParams
from octavo.base.step import Finish
from octavo.obs import EngineCounters

FINISH_REASONS: dict[Finish, str | None] = {
    Finish.RUNNING: None,
    Finish.STOP_TOKEN: "stop",
    Finish.STOP_STRING: "stop",
    Finish.LENGTH: "length",
    Finish.FAULT: "error",
}


class _Message(msgspec.Struct, tag=True, array_like=True, gc=False):
    """Base: encoded as an array that begins with the type's name."""


class TokenTable(_Message):
    """The bytes of every token id (see `TokenBytes.packed`) and the special ids.

    Sent once, before the first request with stop strings.
    """

    blob: bytes
    offsets: bytes
    special: list[int]


class AddRequest(_Message):
    """prompt: token ids as native int32. eos_ids: empty when the request ignores EOS.

    arrival_s: monotonic seconds at the client. params: max_tokens is settled.
    """

    request_id: str
    prompt: bytes
    params: SamplingParams
    eos_ids: tuple[int, ...]
    arrival_s: float


class Abort(_Message):
    """End these requests now; each still gets its terminal `Delta`. Unknown ids are no error."""

    request_ids: list[str]


class GetStats(_Message):
    """Asks for an `EngineStats` with the same number."""

    number: int


class Shutdown(_Message):
    """Abort what runs and end."""


class Starting(_Message):
    """A phase of the start begins (took_ms None) or has ended."""

    phase: str
    took_ms: float | None = None


class LedgerEntry(msgspec.Struct, frozen=True):
    """Bytes of one owner; see `memory.ledger`."""

    owner: str
    planned: int
    measured: int | None


class DecisionInfo(msgspec.Struct, frozen=True):
    """A settled option: its value, who decided ("user", "model", …) and why."""

    value: Any
    by: str
    why: str


class EngineInfo(msgspec.Struct, frozen=True):
    """What a client may know about a ready engine. Sizes in bytes, times in milliseconds."""

    model: str
    served_model_names: tuple[str, ...]
    content_id: str
    family: str
    max_model_len: int
    vocab_size: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    backend: str
    isa: str | None
    threads: int
    ledger: list[LedgerEntry]
    memory_available: int
    decisions: dict[str, DecisionInfo]
    startup_ms: dict[str, float]
    pid: int


class Ready(_Message):
    info: EngineInfo


class TokenLogprob(msgspec.Struct, array_like=True, gc=False):
    """The drawn token's log-probability and rank, and the most likely tokens, best first."""

    logprob: float
    rank: int
    top_ids: list[int]
    top: list[float]


class Delta(msgspec.Struct, array_like=True, gc=False):
    """What one step added to one request.

    finish: a `Finish`; `aborted` marks the end by an abort (finish is then RUNNING).
    stop_reason: the stop id or stop string. fault: what failed.
    first_scheduled_s: monotonic; with the first tokens and the terminal delta only.
    """

    request_id: str
    token_ids: list[int]
    finish: int = 0
    aborted: bool = False
    stop_reason: int | str | None = None
    logprobs: list[TokenLogprob] | None = None
    fault: str | None = None
    first_scheduled_s: float | None = None
    num_preemptions: int = 0
    num_cached_tokens: int = 0

    @property
    def terminal(self) -> bool:
        return self.aborted or self.finish != Finish.RUNNING


class Outputs(_Message):
    """All of a step's deltas."""

    step: int
    deltas: list[Delta]


class Refused(_Message):
    """A request was not accepted; the fields of a RequestError."""

    request_id: str
    error: str
    message: str
    param: str | None
    code: str


class EngineStats(_Message):
    """A snapshot of the engine.

    number: of the `GetStats` it answers. at_s: monotonic time of the snapshot.
    step: number of the newest launched step; step_age_s: since it was launched, None when idle.
    memory: "rss", "pss", "private" bytes of the engine's process.
    """

    number: int
    at_s: float
    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    kv_blocks_peak: int
    step: int
    step_age_s: float | None
    memory: dict[str, int]
    counters: EngineCounters


class Dead(_Message):
    """The engine is gone or could not start; the last message. started: it had been ready."""

    cause: str
    started: bool


ToEngine: TypeAlias = TokenTable | AddRequest | Abort | GetStats | Shutdown
FromEngine: TypeAlias = Starting | Ready | Outputs | Refused | EngineStats | Dead

_ERRORS: dict[str, type[RequestError]] = {
    cls.__name__: cls for cls in (RequestError, CapacityError, ContextLengthError, QueueFullError)
}


def refusal(request_id: str, error: RequestError) -> Refused:
    """The message for an error that the engine found at admission."""
    name = type(error).__name__
    return Refused(
        request_id,
        name if name in _ERRORS else RequestError.__name__,
        str(error),
        error.param,
        error.code,
    )


def refusal_error(message: Refused) -> RequestError:
    """The error that the message describes."""
    cls = _ERRORS.get(message.error, RequestError)
    return cls(message.message, param=message.param, code=message.code)


class Codec:
    """msgpack bytes ↔ messages of one direction. Not shared between threads."""

    def __init__(self, accepts: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(accepts)

    def encode(self, message: Any) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> Any:
        """Raises EngineError for bytes that are no such message."""
        try:
            return self._decoder.decode(data)
        except msgspec.MsgspecError as error:
            raise EngineError(f"a message on the engine's channel is damaged: {error}") from None


def added_id(data: bytes) -> str | None:
    """The request id of an `AddRequest` that can't be decoded, if that much can be read."""
    try:
        parts = msgspec.msgpack.decode(data)
        return parts[1] if parts[0] == AddRequest.__name__ and isinstance(parts[1], str) else None
    except (msgspec.MsgspecError, LookupError, TypeError):
        return None
