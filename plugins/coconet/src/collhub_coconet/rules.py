"""Rules of tensor programs and captured graphs."""

from __future__ import annotations

from collections.abc import Sequence

from collhub_coconet.transformation_rules import list_transformation_rules
from hub_core.plugin_api import Rule, declare_rules, declare_similar_rules

_PROGRAMS = (
    (
        "schema",
        "The document does not have the structure of a tensor program or captured graph.",
        "It was changed by hand or written by a newer version.",
        "Correct the member that the message names, or write the document again.",
        '`"operations": 3`',
    ),
    (
        "not-a-program",
        "The Python file is no program of tensors; it was not executed.",
        "It does not import `collhub_coconet`, or defines no program.",
        "Define a global Program, or a function that returns one.",
        "`x = 1`",
    ),
    (
        "no-program",
        "The Python file defines no program, or a function returns something else.",
        "The program is built in a function with arguments that have no value.",
        "Define a global Program, or a function without arguments that returns one.",
        "`def build(): return 3`",
    ),
    (
        "name",
        "A name is used twice, or for a value of another program.",
        "Operations were copied.",
        "Give every value its own name.",
        "two values named `w`",
    ),
    (
        "undefined",
        "A value is not defined before its use.",
        "Operations are in another order, or an operation is missing.",
        "Define the value in an earlier line.",
        "`y = AllReduce(x)` before x",
    ),
    (
        "operands",
        "An operation has another number of operands than its kind.",
        "An operand was forgotten.",
        "Give the operands that the message names.",
        "`MatMul(x)`",
    ),
    (
        "operand",
        "An operand is a number although a tensor is expected, or the reverse.",
        "A constant is in the place of a value.",
        "Name a value of the program.",
        "`AllReduce(3)`",
    ),
    (
        "attribute",
        "An attribute is missing, or does not belong to the operation.",
        "An attribute of another operation was copied.",
        "Add or remove the attribute that the message names.",
        "a `root` for an all-reduce",
    ),
    (
        "element-type",
        "An element type does not fit the operation.",
        "Operands have different types, or a reduction has booleans.",
        "Insert a Cast.",
        "a sum of float16 and float32",
    ),
    (
        "element",
        "The element type does not exist.",
        "The name is that of another library.",
        "Use one of the types that the message lists.",
        "`half`",
    ),
    (
        "shape",
        "Shapes of operands do not fit each other.",
        "A dimension is transposed or has another size.",
        "Correct the shapes; sizes are compared from the last one.",
        "MatMul of [4, 3] and [4, 3]",
    ),
    (
        "dimension",
        "The dimension does not exist, or cannot be used here.",
        "Dimensions are counted from 1, or the dimension is sliced already.",
        "Count dimensions from 0, and name a free one.",
        "dimension 2 of a matrix",
    ),
    (
        "layout",
        "No rule gives the operation a result for these layouts.",
        "An operand is sliced or partial where the operation needs it replicated.",
        "Insert the collective that the message names.",
        "a ReLU of a partial sum",
    ),
    (
        "partial",
        "A partial result is used where the summands do not add up.",
        "A cast or a nonlinear operation is before the reduction.",
        "AllReduce or ReduceScatter the value first.",
        "a Cast to int32 of a partial sum",
    ),
    (
        "placement",
        "The ranks do not divide the sliced dimension, or the placement is unknown.",
        "The size is no multiple of the number of ranks.",
        "Choose a multiple of the number of ranks; placements are R, L and S(d).",
        "7 rows sliced over 2 ranks",
    ),
    (
        "axis",
        "The mesh has no such axis, or the axis cannot be used here.",
        "The name is wrong, or several axes slice one dimension.",
        "Name axes of the mesh once; communicate over one axis at a time.",
        "axis `tp` of a mesh with only `dp`",
    ),
    (
        "mesh",
        "Axes and sizes of the mesh contradict each other or the number of ranks.",
        "A size is missing.",
        "Give a size per axis, whose product is the number of ranks.",
        "a mesh of 2 x 4 for 6 ranks",
    ),
    (
        "ranks",
        "The program or graph is for another number of ranks.",
        "It was captured on another number of ranks, or has only one.",
        "Give the number that the message names, from 2 on.",
        "a graph captured on 4 ranks, read for 8",
    ),
    (
        "symbol",
        "A symbolic size is not defined or has no value.",
        "A size was not given.",
        "Give it: `-O sizes=B=8,S=1024`.",
        "a tensor [B, 4] without B",
    ),
    (
        "size",
        "A size is outside of its bounds, empty or too large.",
        "The value of a symbol is wrong.",
        "Choose a size in the bounds that the message names.",
        "B=0",
    ),
    (
        "group",
        "Operands are on different groups, or the group does not exist.",
        "A message between groups is missing.",
        "Send one of the operands to the other group.",
        "a sum of values of groups 0 and 1",
    ),
    (
        "root",
        "The root is no rank of the group.",
        "Ranks are counted from 1.",
        "Count ranks from 0.",
        "root 4 of 4 ranks",
    ),
    (
        "reduction",
        "The reduction is not supported here.",
        "The operation has no order of ranks, or the name is unknown.",
        "Use sum, prod, min or max.",
        "a reduction `avg` of a graph",
    ),
    (
        "count",
        "A number of elements is outside of the dimension.",
        "More elements are requested than exist.",
        "Give a count from 1 to the size of the dimension.",
        "the 9 largest of 8 elements",
    ),
    (
        "counts",
        "The counts of an uneven collective do not fit its operand or the ranks.",
        "The table is for another number of ranks, or a rank sends more rows than the tensor has.",
        "State one count per rank, or per pair of ranks, whose sums fit the first dimension.",
        "counts of 4 ranks on 8 ranks",
    ),
    (
        "rate",
        "The rate of a dropout is not from 0 to below 1.",
        "It was given in per cent.",
        "Give a rate such as 0.1.",
        "a rate of 10",
    ),
    (
        "state",
        "A state is updated twice, or a value is no state.",
        "Two updates name one state.",
        "Update each state once, with its last value.",
        "two updates of `m`",
    ),
    (
        "stage",
        "A stage of the schedule names unknown operations, shares them, or waits for itself.",
        "Operations were renamed after the schedule was written.",
        "Correct the stage that the message names.",
        "two stages with one operation",
    ),
    (
        "tensor-attributes",
        "Nodes of a job do not state a consistent tensor program.",
        "The job was not written by the hub, or ranks differ.",
        "Write the job from a program, or give `-O` options for operations that lack data.",
        "a node without its operands",
    ),
)
_GRAPHS = (
    (
        "archive",
        "The archive has no single graph that can be read.",
        "It was not written by torch.export.save, or is encrypted.",
        "Save one program with `torch.export.save`.",
        "a zip file without a model",
    ),
    (
        "version",
        "The version of the schema is not supported.",
        "A newer PyTorch has written the archive.",
        "Export it with a supported version; the message lists them.",
        "schema version 99",
    ),
    (
        "input",
        "An input of the graph is no tensor.",
        "The exported function takes other objects.",
        "Export functions of tensors.",
        "an input of kind `custom_obj`",
    ),
    (
        "argument",
        "An argument has a form that is not read.",
        "The operator takes objects or nested lists.",
        "Capture the program without this operator.",
        "an argument of form `as_graph`",
    ),
    (
        "operator",
        "The operator has no valid name or returns no tensor.",
        "The operator changes state or is of another library.",
        "Capture the program without it.",
        "an operator that returns None",
    ),
    (
        "unknown-operator",
        "The operator is not in the table and reads a block of a tensor.",
        "The library does not know how the operator acts on slices.",
        "Replicate its operands, or gather them before.",
        "a sort of a sliced dimension",
    ),
    (
        "data-dependent",
        "A size or number depends on data.",
        "The program computes sizes at run time.",
        "Export with fixed sizes.",
        "`x.nonzero()`",
    ),
    (
        "graph-break",
        "The graph has branches that depend on data.",
        "The program has control flow.",
        "Export a program without branches.",
        "torch.cond",
    ),
    (
        "groups",
        "Process groups do not form axes of a mesh, or their ranks are not stated.",
        "Groups were created by hand.",
        "Use groups of a device mesh, or give `-O groups`.",
        "the groups [0, 1] and [1, 2]",
    ),
    (
        "splits",
        "A collective has unequal parts.",
        "Tensors of different sizes are exchanged.",
        "Use equal parts.",
        "an all-to-all with sizes 1 and 3",
    ),
    (
        "send",
        "The graph has messages between two ranks.",
        "A program of one group has only collectives.",
        "Capture the stages separately.",
        "torch.distributed.send",
    ),
    (
        "program",
        "An instruction of an HLO module has no equal in tensor programs.",
        "The module has tuples, messages or nested loops at this place.",
        "Compile the program without it; the message names the instruction.",
        "a conditional with collectives",
    ),
)
_REQUESTS = (
    (
        "several-programs",
        "The Python file has several programs, or none of the given name.",
        "`-O program=none`",
    ),
    (
        "target",
        "The named operation is not of this kind.",
        "`--pass split -O target=a` for a product",
    ),
    ("chunks", "A number of chunks or instances is below 1.", "`-O chunks=0`"),
    (
        "no-contents",
        "The algorithm does not state the units that it moves.",
        "a timing-only trace",
    ),
    ("wrong", "The algorithm is incorrect.", "an all-reduce with a missing receive"),
    ("not-there", "A rank reads data before they are there.", "a missing dependency"),
    (
        "torch-module",
        "The program cannot be written as a module of PyTorch.",
        "blocks of unequal length",
    ),
    ("run", "The written modules failed or ran too long.", "`--run` without PyTorch"),
)


def list_rules() -> Sequence[Rule]:
    """Return the rules in the order of their declaration, those of transformations last."""
    return [
        *declare_rules("tensor programs, when they are read or built", _PROGRAMS),
        *declare_rules(
            "captured graphs of PyTorch and modules of XLA, when they are read as programs", _GRAPHS
        ),
        *declare_similar_rules(
            "requests: jobs, tensor programs and shardings",
            _REQUESTS,
            cause="Program, algorithm, network and options do not fit each other.",
            cure="Change the one that the message names.",
        ),
        *list_transformation_rules(),
    ]
