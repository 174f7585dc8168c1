"""A prompt's prefixes as numbers: two fronts and two replicas give the same prefix the same fingerprint."""

from __future__ import annotations

import functools
import hashlib
from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_ONE = np.uint64(1)
_KEY_SHIFT = np.uint64(4)
"""A key has 60 bits, the best ones of the sum: as a Python int that takes 32 bytes, and 64 bits would take 48."""


@dataclass(frozen=True)
class Fingerprints:
    """The fingerprints of one prompt's prefixes, one every `step` tokens, computed once.

    A prefix's sum is h(salt, LoRA) + Σ m(i)·(t(i)+1) mod 2**64, and its fingerprint the upper 60 bits of that: the
    multilinear family of Lemire and Kaser, "Strongly universal string hashing is fast" (2014), with odd multipliers
    m(i) out of splitmix64 (Steele, Lea and Flood, 2014). A sum goes on from the position and sum of any prefix, which
    is all that a KV event tells of the blocks before it. Two prefixes that share a fingerprint cost a worse placement.
    """

    length: int
    """Tokens of the prompt."""
    step: int
    sums: Words = field(repr=False)
    """Of the prefixes of step, 2·step, … tokens, without their namespace."""
    salt: str | None = None
    lora: str | None = None

    @classmethod
    def of(cls, prompt_ids: array[int], salt: str | None, step: int, lora: str | None = None) -> Fingerprints:
        """`prompt_ids` are unsigned 32-bit. Raises ValueError for a step below 1."""
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        whole = len(prompt_ids) // step * step
        ids = np.frombuffer(prompt_ids, dtype=np.uint32, count=whole) if whole else np.empty(0, np.uint32)
        return cls(len(prompt_ids), step, running_sums(ids, 0, step), salt, lora)

    def keys(self, stride: int, salted: bool = True) -> memoryview[int]:
        """Fingerprints of the prefixes of stride, 2·stride, … tokens. `stride` is a multiple of `step`.

        Without `salted`: as if the prompt had no salt.
        """
        every = stride // self.step
        start = namespace(self.salt if salted else None, self.lora)
        return memoryview(keys_of(self.sums[every - 1 :: every] + np.uint64(start)))  # type: ignore[arg-type]


def namespace(salt: str | None, lora: str | None) -> int:
    """The sum of the empty prefix: prompts of two namespaces share nothing. It is 0 with neither."""
    if salt is None and lora is None:
        return 0
    named = repr((salt, lora)).encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little")


def running_sums(ids: npt.NDArray[np.uint32], position: int, step: int) -> Words:
    """After every `step` of `ids`, what they add to the sum when the first of them stands at `position`."""
    terms = (ids.astype(np.uint64) + _ONE) * _multipliers_for(position + len(ids))[position : position + len(ids)]
    return np.cumsum(
        np.einsum("ij->i", terms.reshape(-1, step)), dtype=np.uint64
    )  # sum(axis=1) takes three times as long


def keys_of(sums: Words) -> Words:
    return sums >> _KEY_SHIFT


def _multipliers_for(count: int) -> Words:
    """For at least `count` positions: powers of two, so that few tables are ever made."""
    return _multipliers(1 << max(12, (count - 1).bit_length()))


@functools.cache
def _multipliers(count: int) -> Words:
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | _ONE
