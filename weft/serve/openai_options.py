"""What OpenAI's generating requests ask for, as Options."""

from __future__ import annotations

from weft.core.errors import UsageError
from weft.engine.sampler import Sampling, check_seed
from weft.serve.chatting import MAX_BIASES, MAX_CHOICES, MAX_LOGPROBS, MAX_STOPS, Options
from weft.serve.openai_types import Generating
from weft.serve.wire import Refused


def options_of(body: Generating, limit: int | None, key: bytes) -> Options:
    """What the fields that chat and completions share say. Raises Refused, naming the field."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise Refused(400, f"n is {n}; expected 1 to {MAX_CHOICES}", "n")
    _between("temperature", body.temperature, 0, 2)
    _between("presence_penalty", body.presence_penalty, -2, 2)
    _between("frequency_penalty", body.frequency_penalty, -2, 2)
    if body.stream_options is not None and not body.stream:
        raise Refused(400, "stream_options are for streams only", "stream_options")
    seed = body.seed
    if seed is not None:
        try:
            check_seed(seed % (1 << 64) if seed < 0 else seed)
        except UsageError as e:
            raise Refused(400, str(e), "seed") from None
        seed %= 1 << 64
    salt = key + (body.cache_salt or "").encode(errors="replace")
    return Options(
        limit, sampling(body), seed, n, stops(body.stop), salt=salt, ends=not body.ignore_eos
    )


def sampling(body: Generating) -> Sampling:
    """How tokens are chosen; what is left out is as OpenAI has it: temperature 1, nothing else."""
    try:
        return Sampling(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=max(body.top_k or 0, 0),
            top_p=1.0 if body.top_p is None else body.top_p,
            min_p=body.min_p or 0.0,
            repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            logit_bias=_biases(body.logit_bias),
        )
    except UsageError as e:
        raise Refused(400, str(e), str(e).split(" ")[0]) from None


def stops(given: str | list[str] | None) -> tuple[str, ...]:
    """Stop strings. Raises Refused for too many, too long or empty ones."""
    found = (given,) if isinstance(given, str) else tuple(given or ())
    if len(found) > MAX_STOPS or any(not 0 < len(s) <= 1024 for s in found):
        raise Refused(400, f"stop holds at most {MAX_STOPS} texts of 1 to 1024 characters", "stop")
    return found


def tops(given: int | None, field: str) -> int | None:
    """How many of the most probable tokens are told. Raises Refused."""
    if given is not None and not 0 <= given <= MAX_LOGPROBS:
        raise Refused(400, f"{field} is {given}; expected 0 to {MAX_LOGPROBS}", field)
    return given


def _biases(given: dict[str, float] | None) -> tuple[tuple[int, float], ...]:
    if not given:
        return ()
    if len(given) > MAX_BIASES:
        raise Refused(400, f"logit_bias names at most {MAX_BIASES} tokens", "logit_bias")
    made = []
    for token, value in given.items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise Refused(400, f"logit_bias maps token ids to numbers, not {token!r:.20}",
                          "logit_bias")  # fmt: skip
        _between("logit_bias", value, -100, 100)
        made.append((int(token), value))
    return tuple(made)


def _between(field: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise Refused(400, f"{field} is {value}; expected {low} to {high}", field)
