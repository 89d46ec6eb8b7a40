"""Work that depends on no input is done once, when a graph is made, and its results are stored in the graph.

Among it are the scales softplus(ρ), the squares of the weights, and the decompositions of weights that moments with
factors need, for which ONNX has no operations. Two kinds of work stay in the graph: random numbers, and the expansion
of a few random coordinates into a whole tensor, which would make the file of a partial network large.
"""

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, TensorArgument

__all__ = ["fold"]

_EXPANDING = ("index_add", "index_copy", "index_put", "scatter", "scatter_add")
_STORED = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def fold(program: ExportedProgram) -> ExportedProgram:
    """Return a program that stores the results of all work that depends on no input. The given one is used up."""
    graph, signature = program.graph_module.graph, program.graph_signature
    specs = {spec.arg.name: spec for spec in signature.input_specs}
    known = _known_values(program, specs)
    placed: list[InputSpec] = []
    constants = dict(program.constants)
    first = next(iter(graph.nodes))
    stored = {_memory(value) for node, value in known.items() if node.op == "placeholder"}
    for node, value in known.items():
        if node.op != "call_function" or all(user in known for user in node.users) or not isinstance(value, Tensor):
            continue
        if _memory(value) in stored:  # a view costs nothing, and a copy of it would make the file larger
            continue
        name = f"folded_{len(placed)}"
        with graph.inserting_before(first):
            new = graph.placeholder(name)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user not in known)
        constants[name] = value.detach().clone()
        placed.append(InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(new.name), name))
    for node in reversed(graph.nodes):  # also checks, such as that a matrix has an inverse: they have been passed
        if node in known and node.op == "call_function" and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    kept = []
    for node in list(graph.nodes):
        spec = specs.get(node.name) if node.op == "placeholder" else None
        if spec is None:
            continue
        if spec.kind in _STORED and not node.users:
            graph.erase_node(node)
        else:
            kept.append(spec)
    inputs = [*placed, *kept]
    order = {node.name: place for place, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
    inputs.sort(key=lambda spec: order[spec.arg.name])
    graph.lint()
    program.graph_module.recompile()
    targets = {spec.target for spec in inputs}
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=ExportGraphSignature(inputs, list(signature.output_specs)),
        state_dict={name: value for name, value in program.state_dict.items() if name in targets},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants={name: value for name, value in constants.items() if name in targets},
        verifiers=program.verifiers,
    )


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _known_values(program: ExportedProgram, specs: dict[str, InputSpec]) -> dict[fx.Node, Any]:
    """Compute every node that depends on stored tensors alone."""
    known: dict[fx.Node, Any] = {}
    for node in program.graph_module.graph.nodes:
        if node.op == "placeholder":
            spec = specs[node.name]
            if spec.kind in _STORED:
                stored = program.state_dict.get(spec.target, program.constants.get(spec.target))
                if isinstance(stored, Tensor):
                    known[node] = stored.detach()
        elif node.op == "call_function" and _may_fold(node) and all(arg in known for arg in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda arg: known[arg])
            with torch.no_grad():
                known[node] = node.target(*args, **kwargs)
    return known


def _may_fold(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return False
    return target.overloadpacket.__name__ not in _EXPANDING
