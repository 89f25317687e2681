"""Canonical hash of a program: equal for programs that differ only in names and in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from collhub_coconet.documents.json_document import argument_fields
from collhub_coconet.program.operations import ATTRIBUTES, Operation
from collhub_coconet.program.program import Program


def canonical_hash(program: Program) -> str:
    """Hash a program independently of the names and the order of its operations (SHA-256, hex).

    An operation is identified by the hash of its kind, attributes and operands; an argument by that
    of its JSON fields, its name included. Stages are compared as sets of operations, chains and
    outputs as lists. Equal hashes mean equal programs, except for collisions of SHA-256. The cost
    is linear in the number of operations, except for sorting.
    """
    hashes = {
        argument.name: _hash_lines([str(argument_fields(argument))])
        for argument in program.arguments
    }
    # Operands precede their readers in a program, so that their hashes are available.
    for operation in program.operations:
        hashes[operation.name] = _hash_operation(operation, hashes)
    stages = {
        stage.name: _hash_lines(sorted(hashes[member] for member in stage.members))
        for stage in program.stages
    }
    # The members of a chain are operations or stages.
    labels = hashes | stages
    chains = [_hash_lines([labels[member] for member in chain.members]) for chain in program.chains]
    # Not a set: a program that computes a value twice is a different state.
    operations = sorted(hashes[operation.name] for operation in program.operations)
    outputs = [hashes[name] for name in program.outputs]
    sections = (operations, sorted(stages.values()), sorted(chains), outputs)
    return _hash_lines(_hash_lines(section) for section in sections)


def _hash_operation(operation: Operation, hashes: dict[str, str]) -> str:
    """Hash kind, attributes and operands; `hashes`: hashes of values by name, all operands' too."""
    attributes = [f"{name}={getattr(operation, name)}" for name in ATTRIBUTES]
    operands = [
        hashes[operand] if isinstance(operand, str) else repr(operand)
        for operand in operation.operands
    ]
    return _hash_lines([operation.kind, *attributes, *operands])


def _hash_lines(lines: Iterable[str]) -> str:
    """SHA-256 (hex) of the lines in order; unambiguous because no line contains a line break."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
