"""Triton's interpreter made faster: it does less around each operation, and computes the same.

It patches private functions of Triton 3.9. Where another version lacks one of them, that part is left as it is.
`tests/test_interpreter.py` compares what is patched with what is not."""

import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter


def speed_up():
    if hasattr(interpreter, "_get_np_dtype"):
        _remember_types()
    if hasattr(tl.core, "tuple"):
        _remember_shapes()
    if hasattr(semantic, "TritonSemantic"):
        _convert_and_broadcast_only_where_needed()
    if hasattr(tl.core, "tuple") and hasattr(interpreter, "_LangPatchScope"):
        _patch_the_language_once()
    options = getattr(interpreter.interpreter_builder, "options", None)
    # Integer overflow is computed again in 64 bits for every operation, but reported only under `debug`.
    if getattr(options, "sanitize_overflow", False) and not options.debug:
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _patch_the_language_once():
    """While a kernel runs, the interpreter replaces the functions of `triton.language` by its own, and again in every
    call of a device function. Nothing in these tests' process needs the original functions, so the interpreter's own
    stay: each module that kernels see is patched at its first use."""
    patch, patched, scope = interpreter._patch_lang, {}, interpreter._LangPatchScope()

    @functools.wraps(patch)
    def patch_once(function):
        # The kernels see `tl`, Triton's own device functions (tl.sum, …) `tl.core`.
        visible = tuple(value is tl for value in function.__globals__.values() if value is tl or value is tl.core)
        if visible not in patched:
            patched[visible] = patch(function)  # kept, and never restored
        return scope  # an empty one

    def patch_builtin(package, builder, scope):
        for name, member in inspect.getmembers(package):
            if tl.core.is_builtin(member):
                call = _interpreted(inspect.unwrap(member))
                if package is tl.tensor and name in OPERATORS:
                    patched_operators[name] = Operator(name, call)
                    call = patched_operators[name].function()
                scope.set_attr(package, name, call)

    interpreter._patch_lang, interpreter._patch_builtin = patch_once, patch_builtin


def _interpreted(function):
    def call(*args, _semantic=None, **kwargs):
        return function(*args, **kwargs, _semantic=interpreter.interpreter_semantic)

    return call


OPERATORS = {
    "__add__": np.add,
    "__radd__": np.add,
    "__sub__": np.subtract,
    "__rsub__": lambda right, left: left - right,
    "__mul__": np.multiply,
    "__rmul__": np.multiply,
    "__and__": np.bitwise_and,
    "__or__": np.bitwise_or,
    "__xor__": np.bitwise_xor,
    "__lt__": np.less,
    "__le__": np.less_equal,
    "__gt__": np.greater,
    "__ge__": np.greater_equal,
    "__eq__": np.equal,
    "__ne__": np.not_equal,
}
SIGNED, UNSIGNED, FLOATS = ("int32", "int64"), ("uint32", "uint64"), ("fp32", "fp64")
BITWISE = ("__and__", "__or__", "__xor__")
LARGEST = 2**31  # of the integers that are constants of type int32


patched_operators: dict[str, "Operator"] = {}


class _Plan(NamedTuple):
    """How to compute an operation for operands of certain types and shapes."""

    compute: Any  # function of two arrays, or of an array and a number
    dtype: Any  # of the result's handle
    attributes: dict[str, Any]  # of the result


class Operator:
    """An operator of `tl.tensor`. The interpreter derives the type and shape of each result from those of the operands,
    in some twenty calls. They are the same for all operands of the same types and shapes, and are kept."""

    def __init__(self, name, call):
        self.name, self.call = name, call
        self.plans: dict[tuple[int, int], _Plan | None] = {}

    def function(self):
        plans, call = self.plans, self.call
        make_handle, make_tensor, tensor = interpreter.TensorHandle.__new__, tl.tensor.__new__, tl.tensor

        def operate(left, right, _semantic=None):
            if type(right) is tl.constexpr:
                right = right.value
            if type(right) is tensor:
                key, data = (id(left.type), id(right.type)), right.handle.data
            elif type(right) is float or (type(right) is int and 0 <= right < LARGEST):
                key, data = (id(left.type), id(type(right))), right
            else:
                return call(left, right)
            try:
                plan = plans[key]
            except KeyError:
                return self.first(key, left, right, data)
            if plan is None:
                return call(left, right)
            handle = make_handle(interpreter.TensorHandle)
            handle.data, handle.dtype, handle.attr = plan.compute(left.handle.data, data), plan.dtype, {}
            result = make_tensor(tensor)
            result.__dict__.update(plan.attributes, handle=handle)
            return result

        return operate

    def first(self, key, left, right, data):
        """Compute with the interpreter, and make a plan that gives the same."""
        result = self.call(left, right)
        self.plans[key] = None
        compute = self.compute(left, right)
        if compute is not None:
            with np.errstate(all="ignore"):
                again = compute(left.handle.data, data)
            if again.dtype == result.handle.data.dtype and np.array_equal(again, result.handle.data, equal_nan=True):
                attributes = {name: value for name, value in vars(result).items() if name != "handle"}
                self.plans[key] = _Plan(compute, result.handle.dtype, attributes)
        return result

    def compute(self, left, right):
        """The operation as a function of two arrays, or of an array and a number; None if it is left to Triton."""
        ufunc, constant = OPERATORS[self.name], left.handle.data.dtype.type
        one, other = left.dtype.name, right.dtype.name if isinstance(right, tl.tensor) else type(right).__name__
        if left.dtype.is_ptr():
            width = max(1, left.dtype.element_ty.primitive_bitwidth // 8)
            is_offset = self.name == "__add__" and other in (*SIGNED, "int")
            return functools.partial(_move_pointer, width) if is_offset else None
        if one == other and (one in (*SIGNED, *UNSIGNED, *FLOATS) or (one == "int1" and self.name in BITWISE)):
            return ufunc
        if (other == "int" and one in (*SIGNED, *UNSIGNED, *FLOATS)) or (other == "float" and one in FLOATS):
            return lambda tensor, number: ufunc(tensor, constant(number))
        if {one, other} == {*SIGNED}:
            return lambda tensor, another: ufunc(tensor.astype(np.int64), another.astype(np.int64))
        return None


def _move_pointer(width, pointer, offset):
    return pointer + width * (np.uint64(offset) if isinstance(offset, int) else offset.astype(np.uint64))


def _remember_types():
    """The NumPy type of a scalar type comes from a table that is built anew for every operation."""
    find, known = interpreter._get_np_dtype, {}

    @functools.wraps(find)
    def look_up(dtype):
        if type(dtype) is not tl.dtype:  # pointers and blocks
            return find(dtype)
        if dtype.name not in known:
            known[dtype.name] = find(dtype)
        return known[dtype.name]

    interpreter._get_np_dtype = look_up


def _remember_shapes():
    """Every tensor, which is every result, computes its shape and the type of that shape anew. Equal types become one
    object, so that the types of operands can be compared by identity."""
    make_tensor, make_block = tl.core.tensor.__init__, tl.core.block_type.__init__
    tensors, blocks, types = {}, {}, {}

    def initialise_tensor(self, handle, type):
        known = types.get(id(type))
        if known is None:
            key = str(type)
            if key not in tensors:
                make_tensor(self, handle, type)
                tensors[key] = {"shape": self.shape, "numel": self.numel, "type": type, "dtype": type.scalar}
                types[id(type)] = tensors[key]  # which keeps it alive, so no other type gets its identity
            known = tensors[key]
        self.__dict__.update(known, handle=handle)

    def initialise_block(self, element_ty, shape):
        sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        if type(element_ty) is not tl.dtype or not all(isinstance(size, int) for size in sizes):  # of pointers
            make_block(self, element_ty, shape)
            return
        key = element_ty.name, sizes
        if key not in blocks:
            make_block(self, element_ty, shape)
            blocks[key] = vars(self).copy()
        self.__dict__.update(blocks[key])

    tl.core.tensor.__init__, tl.core.block_type.__init__ = initialise_tensor, initialise_block


def _convert_and_broadcast_only_where_needed():
    """The operands of most operations have one type and one shape."""
    convert = semantic.TritonSemantic.binary_op_type_checking_impl
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    @functools.wraps(convert)
    def convert_if_needed(self, lhs, rhs, *options, **named):
        divides = len(options) > 3 or "div_or_mod" in named  # which converts half precision
        if isinstance(lhs, tl.tensor) and isinstance(rhs, tl.tensor) and not divides:
            dtype = lhs.dtype
            if dtype is rhs.dtype and type(dtype) is tl.dtype:  # no pointers
                return self.broadcast_impl_value(lhs, rhs)
        return convert(self, lhs, rhs, *options, **named)

    @functools.wraps(broadcast)
    def broadcast_if_needed(self, lhs, rhs):
        sizes = [each.type.shape.values if each.type.is_block() else None for each in (lhs, rhs)]
        return (lhs, rhs) if sizes[0] == sizes[1] else broadcast(self, lhs, rhs)

    semantic.TritonSemantic.binary_op_type_checking_impl = convert_if_needed
    semantic.TritonSemantic.broadcast_impl_value = broadcast_if_needed
