"""Triton's interpreter made faster: it does less around each operation, and computes the same.

It patches private functions of Triton 3.9. Where another version lacks one of them, that part is left as it is."""

import dataclasses
import functools
import inspect

import triton.language as tl
from triton.language import semantic
from triton.runtime import interpreter


def speed_up():
    if hasattr(interpreter, "_patch_lang"):
        _patch_the_language_once_per_kernel()
    if hasattr(interpreter, "_get_np_dtype"):
        _remember_types()
    if hasattr(tl.core, "tuple"):
        _remember_shapes()
    if hasattr(interpreter, "_patch_builtin"):
        _list_the_language_once()
    if hasattr(semantic, "TritonSemantic"):
        _convert_and_broadcast_only_where_needed()
    options = getattr(interpreter.interpreter_builder, "options", None)
    # Integer overflow is computed again in 64 bits for every operation, but reported only under `debug`.
    if getattr(options, "sanitize_overflow", False) and not options.debug:
        interpreter.interpreter_builder.options = dataclasses.replace(options, sanitize_overflow=False)


def _patch_the_language_once_per_kernel():
    """While a kernel runs, the interpreter replaces the functions of `triton.language` by its own. It does so again in
    every call of a device function, which takes longer than most of these functions do."""
    run, patch = interpreter.GridExecutor.__call__, interpreter._patch_lang
    patched = set()

    @functools.wraps(run)
    def run_kernel(self, *args, **kwargs):
        patched.clear()
        try:
            return run(self, *args, **kwargs)
        finally:
            patched.clear()

    @functools.wraps(patch)
    def patch_once(function):
        # The kernels see `tl`, Triton's own device functions (tl.sum, …) `tl.core`: each is patched at its first use.
        visible = tuple(value is tl for value in function.__globals__.values() if value is tl or value is tl.core)
        if visible in patched:
            return None
        patched.add(visible)
        return patch(function)

    interpreter.GridExecutor.__call__ = run_kernel
    interpreter._patch_lang = patch_once


def _list_the_language_once():
    """To replace the functions of a module or class, its members are listed anew for every kernel."""
    members = functools.cache(lambda package: [(k, v) for k, v in inspect.getmembers(package) if tl.core.is_builtin(v)])

    def patch_builtin(package, builder, *scope):
        for name, member in members(package):
            interpreter._patch_attr(package, name, member, builder, *scope)

    interpreter._patch_builtin = patch_builtin


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
    """Every tensor, which is every result, computes its shape and the type of that shape anew."""
    make_tensor, make_block = tl.core.tensor.__init__, tl.core.block_type.__init__
    tensors, blocks = {}, {}

    def initialise_tensor(self, handle, type):
        key = tuple(type.shape) if type.is_block() else ()
        if key not in tensors:
            make_tensor(self, handle, type)
            tensors[key] = {"shape": self.shape, "numel": self.numel}
        self.__dict__.update(tensors[key], handle=handle, type=type, dtype=type.scalar)

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
