"""Grammars over tokens: which of them may come next, so that a text belongs to its grammar.

llguidance computes the masks. It is imported, and a tokenizer made for it, when the first grammar is asked for:
without grammars it costs nothing. The engine samples within the masks, and the trainer computes the same ones again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astune.engine.tokenizer import ModelTokenizer
from astune.schema import ONE_LINE_JSON, Constraint, EngineError, Grammar, GrammarError, install_extra

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

Bits = NDArray[np.uint8]
"""A mask of allowed tokens: token t is bit t % 8 of byte t // 8, at the lower end first."""

_COMPILED = 256
"""Compiled grammars kept; one takes tens of KB, and a task may bring a grammar of its own."""
_FORBIDDEN = -1e30
"""Added to a forbidden token's logit: no probability is left, and no arithmetic gives NaN, as with infinity."""
_SHOWN = 120
"""Characters of a grammar that an error repeats."""
_HINT = "see what llguidance supports, and simplify the grammar"


class Matcher:
    """Follows one completion, token by token."""

    def __init__(self, matcher: LLMatcher, grammar: Grammar, forget: Callable[[], None]) -> None:
        self._matcher = matcher
        self._grammar = grammar
        self._forget = forget

    def allowed(self) -> Bits:
        """Return the tokens that may come next; the stop tokens if the text may end here.

        Raises:
            EngineError: the text left the grammar, or the grammar grew beyond llguidance's limits.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error() or not bits.any():
            self._forget()  # the states that all its matchers share may be used up; the next one begins with none
            reason = _plain(self._matcher.get_error()) or "no token of the model's vocabulary can come next"
            raise EngineError(f"a completion under {_named(self._grammar)} cannot continue: {reason}", hint=_HINT)
        return bits

    def accept(self, token: int) -> None:
        """Advance by a token; one that is not allowed shows in the next call of `allowed`."""
        self._matcher.consume_token(token)


class Grammars:
    """Compiles grammars for one model's tokens. Safe to call from several threads; the first call takes a second.

    Args:
        folder: the model's folder, for its tokenizer.
        vocab_size: the width of the model's logits, which may be more than its tokenizer has tokens.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._compiling = Lock()
        self._lock = Lock()
        """Guards `_compiled`; held for a moment only."""
        self._compiled: dict[Constraint, LLMatcher] = {}
        self._tokenizer_ending_with = lru_cache(maxsize=4)(self._load_tokenizer)

    def matcher(self, constraint: Constraint) -> Matcher:
        """Create the state at the beginning of a completion. A grammar that was not used before is compiled, which may
        take a second.

        Raises:
            GrammarError: the grammar does not compile, with llguidance's reason.
            EngineError: llguidance is not installed.
        """
        ready = self.ready_matcher(constraint)
        if ready is not None:
            return ready
        with self._compiling:
            compiled = self._compiled.get(constraint) or self._compile(constraint)
        with self._lock:
            self._compiled[constraint] = compiled
            while len(self._compiled) > _COMPILED:
                del self._compiled[next(iter(self._compiled))]  # the one that was asked for longest ago
        return self._start(compiled, constraint)

    def ready_matcher(self, constraint: Constraint) -> Matcher | None:
        """The same at once; None where the grammar has yet to be compiled."""
        with self._lock:
            compiled = self._compiled.pop(constraint, None)
            if compiled is None:
                return None
            self._compiled[constraint] = compiled
        return self._start(compiled, constraint)

    def _start(self, compiled: LLMatcher, constraint: Constraint) -> Matcher:
        return Matcher(compiled.deep_copy(), constraint.grammar, self._forget)

    def _forget(self) -> None:
        with self._lock:
            self._compiled.clear()

    def masks(self, constraint: Constraint, token_ids: Sequence[int]) -> list[Bits]:
        """Return the allowed tokens at each of a completion's positions.

        Raises:
            EngineError: they are no completion under this constraint, or the grammar grew beyond llguidance's limits.
        """
        with suppress(EngineError):
            return self._replay(constraint, token_ids)
        # Other completions may have used up the states that they all share: the second time it has them for itself.
        return self._replay(constraint, token_ids)

    def _replay(self, constraint: Constraint, token_ids: Sequence[int]) -> list[Bits]:
        matcher = self.matcher(constraint)
        masks: list[Bits] = []
        for token in token_ids:
            masks.append(matcher.allowed())
            if not masks[-1][token >> 3] >> (token & 7) & 1:
                raise EngineError(
                    f"token {len(masks) - 1} of a completion is none that {_named(constraint.grammar)} allows there",
                    hint="it was recorded with another tokenizer, or by another version of llguidance",
                )
            matcher.accept(token)
        return masks

    def _compile(self, constraint: Constraint) -> LLMatcher:
        try:
            from llguidance import LLMatcher
        except ImportError as cause:
            raise EngineError(
                f"grammars need llguidance, which does not import: {cause}", hint=install_extra("local")
            ) from cause
        grammar = constraint.grammar
        if not constraint.stop_token_ids:
            raise EngineError(
                f"a completion under {_named(grammar)} needs stop tokens, or it could never end",
                hint="give SamplingParams.stop_token_ids the model's end of a turn",
            )
        tokenizer = self._tokenizer_ending_with(constraint.stop_token_ids)
        try:
            compiled = LLMatcher(tokenizer, _as_llguidance(grammar, LLMatcher), log_level=0)
        except ValueError as cause:
            raise _does_not_compile(grammar, str(cause)) from cause
        if compiled.is_error():
            raise _does_not_compile(grammar, compiled.get_error())
        first = compiled.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise _does_not_compile(grammar, first.get_error() or "no text belongs to it")
        return compiled

    def _load_tokenizer(self, stop_token_ids: tuple[int, ...]) -> LLTokenizer:
        from llguidance import LLTokenizer

        backend = ModelTokenizer.load(self._folder).backend
        try:
            return LLTokenizer(backend.to_str(), n_vocab=self._vocab_size, eos_token=list(stop_token_ids))
        except ValueError as cause:
            raise EngineError(f"grammars cannot be used with the tokenizer of {self._folder.name}: {cause}") from cause


def unpack(bits: Bits, vocab_size: int) -> NDArray[np.uint8]:
    """[vocabulary]: 1 where a token is allowed, else 0."""
    return np.unpackbits(bits, count=vocab_size, bitorder="little")


def forbid_others(logits_BV: Tensor, allowed: Mapping[int, Bits]) -> None:
    """Take the probability from every token that its row's mask does not allow, in place; other rows stay."""
    if not allowed:
        return
    vocab_size, device = logits_BV.shape[1], logits_BV.device
    bits_NB = np.stack([bits[: -(-vocab_size // 8)] for bits in allowed.values()])
    falls_NV = torch.from_numpy(np.take(_falls(logits_BV.dtype), bits_NB, axis=0, mode="clip")).flatten(1)
    rows_N = torch.tensor(list(allowed), device=device)
    logits_BV.index_add_(0, rows_N, falls_NV.view(logits_BV.dtype)[:, :vocab_size].to(device))


@cache
def _falls(dtype: torch.dtype) -> NDArray[np.signedinteger]:
    """[256, 8]: what each byte of a mask adds to its eight tokens' logits, as the bits of numbers of `dtype`."""
    allowed = unpack(np.arange(256, dtype=np.uint8), 8 * 256).reshape(256, 8)
    falls = torch.from_numpy(allowed).to(dtype).sub_(1).mul_(-_FORBIDDEN)
    return falls.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]).numpy()


def _as_llguidance(grammar: Grammar, forms: type[LLMatcher]) -> str:
    match grammar.kind:
        case "json_schema":
            return forms.grammar_from_json_schema(grammar.text, overrides=cast("JsonCompileOptions", ONE_LINE_JSON))
        case "regex":
            return forms.grammar_from_regex(grammar.text)
        case "lark":
            return forms.grammar_from_lark(grammar.text)
        case "call":
            raise EngineError("a forced call needs the form in which the model writes calls")


def _does_not_compile(grammar: Grammar, message: str) -> GrammarError:
    """The error for a grammar that does not compile; the last line of llguidance's message is the reason."""
    reason = message.rsplit("error: ", 1)[-1].split("\n", 1)[0].strip() if "error: " in message else _plain(message)
    return GrammarError(f"{_named(grammar)} does not compile: {reason}", reason=reason, hint=_HINT)


def _named(grammar: Grammar) -> str:
    shown = grammar.text if len(grammar.text) <= _SHOWN else f"{grammar.text[:_SHOWN]}..."
    return f"the {grammar.kind} grammar {shown!r}"


def _plain(reason: str) -> str:
    """llguidance's reason on one line, without the parser's state that follows it."""
    return " ".join(reason.partition("<state>")[0].split())
