"""Canonical form of a program: equal for programs that differ in names and order alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from collhub_coconet.documents.json_document import argument_fields
from collhub_coconet.program.operations import ATTRIBUTES, Operand, Operation
from collhub_coconet.program.program import Program


def canonical_hash(program: Program) -> str:
    """Hash of what a program computes and how: values by what they are made of, not by name.

    Every operation is named by the hash of its kind, attributes and operands, arguments by name.
    Stages are sets, chains and outputs lists of such names. Two programs of one hash are the same
    but for collisions of SHA-256. Cost: linear in operations.
    """
    names = {one.name: _hash([str(argument_fields(one))]) for one in program.arguments}
    # Operands stand before their readers, so that their hashes are known.
    for operation in program.operations:
        names[operation.name] = _name_of(operation, names)
    stages = {
        stage.name: _hash(sorted(names[one] for one in stage.members)) for stage in program.stages
    }
    labels = names | stages
    chains = [_hash([labels[one] for one in chain.members]) for chain in program.chains]
    # Equal operations stand twice, so that doing work twice is another state.
    operations = sorted(names[one.name] for one in program.operations)
    outputs = [names[name] for name in program.outputs]
    parts = (operations, sorted(stages.values()), sorted(chains), outputs)
    return _hash(_hash(part) for part in parts)


def _name_of(operation: Operation, names: dict[str, str]) -> str:
    """The hash of an operation whose operands have theirs."""
    stated = [f"{name}={getattr(operation, name)}" for name in ATTRIBUTES]
    operands = [_operand(one, names) for one in operation.operands]
    return _hash([operation.kind, *stated, *operands])


def _operand(operand: Operand, names: dict[str, str]) -> str:
    """A number as it is, a value by its hash."""
    return names[operand] if isinstance(operand, str) else repr(operand)


def _hash(parts: Iterable[str]) -> str:
    """One text for all of the parts, in their order."""
    # No part of a hash contains a line break.
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
