"""Text to token ids, exactly as the tokenizer's own reference does it. Pure: it is given the file's bytes.

References: ``tiktoken``'s ``encode_ordinary`` (the whole document at once; Meta's wrapper cuts at 400,000 characters
first and may differ there), and ``tokenizers`` for a Hugging Face ``tokenizer.json``. A control token's text inside a
document is encoded as ordinary text, so that no document can end itself or begin a role.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers

from steelrail.artifacts.shards import TokenizerIdentity
from steelrail.errors import InputError, must
from steelrail.shards.cut import batches, may_cut, pieces

Tokens = npt.NDArray[np.uint32]
Encode = Callable[[Sequence[str]], list[Tokens | None]]

CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CL100K_CONTROL = {
    "<|endoftext|>": 100257,
    "<|fim_prefix|>": 100258,
    "<|fim_middle|>": 100259,
    "<|fim_suffix|>": 100260,
    "<|endofprompt|>": 100276,
}
LLAMA3_CONTROL_NAMES = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|step_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
    "<|image|>",
)
LLAMA3_NUM_CONTROL = 256


@dataclass(frozen=True)
class Tokenizer:
    """Who it is, and ``encode``: texts to uint32 ids without end-of-text; none for a text its reference refuses."""

    identity: TokenizerIdentity
    encode: Encode


def load_tokenizer(data: bytes, kind: str, end_of_text: str, where: str, threads: int = 1) -> Tokenizer:
    """Return the tokenizer in a file's ``data``; ``kind`` is ``shards.tokenizer_format``. Raises ``InputError``."""
    if kind == "huggingface":
        return _huggingface(data, end_of_text, where)
    ranks = parse_ranks(data, where)
    control = CL100K_CONTROL if kind == "tiktoken-cl100k" else llama3_control(len(ranks))
    pattern = CL100K_PATTERN if kind == "tiktoken-cl100k" else LLAMA3_PATTERN
    if set(ranks.values()) & set(control.values()):
        raise _unfit(f"the ranks file of {kind}", f"{len(ranks)} ranks that reach into its control tokens", where)
    # No control token is told to the encoder, so none can come out of a text.
    encoding = tiktoken.Encoding(kind, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    identity = _identity(data, kind, max(*ranks.values(), *control.values()) + 1, _end_id(control, end_of_text, where))
    return Tokenizer(identity, _tiktoken_encode(encoding, threads))


def digest_of(data: bytes) -> str:
    """Return the identity of a tokenizer file: the SHA-256 of its bytes."""
    return hashlib.sha256(data).hexdigest()


def llama3_control(num_ranks: int) -> dict[str, int]:
    """Return Llama-3's 256 control tokens, which follow its ranks (``llama_models.llama3.tokenizer``)."""
    rest = range(2, LLAMA3_NUM_CONTROL - len(LLAMA3_CONTROL_NAMES) + 2)
    names = [*LLAMA3_CONTROL_NAMES, *(f"<|reserved_special_token_{index}|>" for index in rest)]
    return {name: num_ranks + index for index, name in enumerate(names)}


def parse_ranks(data: bytes, where: str) -> dict[bytes, int]:
    """Return token bytes to rank from tiktoken's text format. Raises ``InputError`` unless it is whole and sound."""
    try:
        pairs = [line.split() for line in data.splitlines() if line.strip()]
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise _unfit("a tiktoken ranks file", "something else", where) from error
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(ranks) != len(pairs) or len(set(ranks.values())) != len(pairs) or min(ranks.values()) < 0:
        raise _unfit("a whole tiktoken ranks file", f"one of {len(pairs)} lines with gaps or repeats", where)
    return ranks


def _tiktoken_encode(encoding: tiktoken.Encoding, threads: int) -> Encode:
    def one(text: str) -> Tokens | None:
        try:
            return np.asarray(encoding.encode_to_numpy(text, disallowed_special=()), dtype=np.uint32)
        except ValueError:  # its regular expression gives up (a million spaces, then a letter)
            return None

    if threads == 1:
        return lambda texts: [one(text) for text in texts]
    pool = ThreadPoolExecutor(threads)
    return lambda texts: list(pool.map(one, texts))


def _huggingface(data: bytes, end_of_text: str, where: str) -> Tokenizer:
    described = _described(data, where)
    control = {one["content"]: one["id"] for one in described["added_tokens"] if _is_control(one, end_of_text)}
    end_of_text_id = _end_id(control, end_of_text, where)
    tokenizer = _build(described, end_of_text, where)
    vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    # A tokenizer's unknown token is no control token: it stands for text that its vocabulary lacks.
    never = [token for name, token in control.items() if name != described["model"].get("unk_token")]
    cut = pieces if may_cut(described) else _whole
    encode = _huggingface_encode(tokenizer, cut, _table(vocab_size, never), where)
    return Tokenizer(_identity(data, "huggingface", vocab_size, end_of_text_id), encode)


def _described(data: bytes, where: str) -> Any:
    """Return the parsed ``tokenizer.json``, refused where it would make chance part of the tokens."""
    try:
        described = json.loads(data)
        model, _ = described["model"], described["added_tokens"]
        random = bool(model.get("dropout"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _unfit("a Hugging Face tokenizer.json", "something else", where) from error
    if random:
        raise _unfit("one without dropout", f"one with dropout {model['dropout']}", where)
    return described


def _is_control(token: Any, end_of_text: str) -> bool:
    return bool(token["special"]) or token["content"] == end_of_text


def _build(described: Any, end_of_text: str, where: str) -> tokenizers.Tokenizer:
    """Return the tokenizer that cuts nothing, pads nothing, adds nothing, and reads control tokens as text."""
    added = [{**one, "special": _is_control(one, end_of_text)} for one in described["added_tokens"]]
    plain = {**described, "added_tokens": added, "truncation": None, "padding": None}
    try:
        tokenizer = tokenizers.Tokenizer.from_str(json.dumps(plain))
    except Exception as error:  # the library raises nothing narrower
        why = " ".join(str(error).split())[:200]
        raise _unfit("a sound tokenizer.json", f"not ({why})", where) from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def _huggingface_encode(
    tokenizer: tokenizers.Tokenizer, cut: Callable[[str], list[str]], forbidden: npt.NDArray[np.bool_], where: str
) -> Encode:
    def many(texts: list[str]) -> list[Tokens | None]:
        found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array(one.ids, dtype=np.uint32) for one in found]

    def each(texts: list[str]) -> list[Tokens | None]:
        try:
            return many(texts)
        except Exception:  # noqa: BLE001  (nothing narrower is raised, and one text spoils its batch: find it)
            return [None] if len(texts) == 1 else [each([text])[0] for text in texts]

    def encode(texts: Sequence[str]) -> list[Tokens | None]:
        parts = [cut(text) for text in texts]
        found = chain.from_iterable(each(batch) for batch in batches(chain.from_iterable(parts)))
        encoded = [_join([next(found) for _ in part]) for part in parts]
        if any(tokens is not None and forbidden[tokens].any() for tokens in encoded):
            raise _unfit("one that keeps control tokens out of text", "one whose model itself makes them", where)
        return encoded

    return encode


def _whole(text: str) -> list[str]:
    return [text]


def _join(parts: list[Tokens | None]) -> Tokens | None:
    whole = [part for part in parts if part is not None]
    if len(whole) < len(parts):
        return None
    return whole[0] if len(whole) == 1 else np.concatenate(whole)


def _table(vocab_size: int, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
    table = np.zeros(vocab_size, dtype=np.bool_)
    table[list(tokens)] = True
    return table


def _end_id(control: dict[str, int], end_of_text: str, where: str) -> int:
    if end_of_text in control:
        return control[end_of_text]
    near = difflib.get_close_matches(end_of_text, control, n=1, cutoff=0.3) or sorted(control)[:1]
    do = f"set shards.end_of_text to {near[0]!r}" if near else "use a tokenizer that has control tokens"
    raise InputError(must("shards.end_of_text", "a control token of the tokenizer", repr(end_of_text), where, do))


def _identity(data: bytes, kind: str, vocab_size: int, end_of_text_id: int) -> TokenizerIdentity:
    return TokenizerIdentity(digest=digest_of(data), format=kind, vocab_size=vocab_size, end_of_text_id=end_of_text_id)


def _unfit(be: str, actual: str, where: str) -> InputError:
    do = "correct shards.tokenizer or shards.tokenizer_format"
    return InputError(must("tokenizer file", be, actual, where, do))
