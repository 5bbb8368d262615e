"""As much of torch as examples/torch_trainer.py uses, on NumPy, with gradients by a tape.

For the tests: torch's own wheels for Linux bring gigabytes of CUDA along. The example itself is the
same with either, and its numbers are compared with those of the model in Rust.
"""

import types

import numpy as np


class Tensor:
    """An array that remembers what it was made of."""

    __array_priority__ = 1000

    def __init__(self, data, parents=(), back=None):
        self.data = np.asarray(data)
        self.grad = None
        self.requires_grad = any(parent.requires_grad for parent in parents)
        self._parents = parents
        self._back = back

    @property
    def shape(self):
        return self.data.shape

    @property
    def T(self):
        return self.transpose(0, 1)

    def requires_grad_(self, wanted=True):
        self.requires_grad = wanted
        return self

    @property
    def dtype(self):
        return self.data.dtype

    def cpu(self):
        return self

    def detach(self):
        return Tensor(self.data)

    def numpy(self):
        assert not self.requires_grad, "call detach() first"
        return self.data

    def item(self):
        return self.data.item()

    def float(self):
        return Tensor(self.data.astype(np.float32))

    def backward(self):
        order, seen = [], set()

        def visit(node):
            if id(node) not in seen and node.requires_grad:
                seen.add(id(node))
                for parent in node._parents:
                    visit(parent)
                order.append(node)

        visit(self)
        self.grad = np.ones_like(self.data)
        for node in reversed(order):
            if node._back is None:
                continue
            for parent, part in zip(node._parents, node._back(node.grad), strict=True):
                if parent.requires_grad:
                    part = _fold(part, parent.shape)
                    parent.grad = part if parent.grad is None else parent.grad + part

    def __add__(self, other):
        other = _tensor(other)
        return Tensor(self.data + other.data, (self, other), lambda g: (g, g))

    def __mul__(self, other):
        other = _tensor(other)
        back = lambda g: (g * other.data, g * self.data)  # noqa: E731
        return Tensor(self.data * other.data, (self, other), back)

    def __neg__(self):
        return Tensor(-self.data, (self,), lambda g: (-g,))

    def __sub__(self, other):
        return self + -_tensor(other)

    def __truediv__(self, other):
        other = _tensor(other)
        back = lambda g: (g / other.data, -g * self.data / other.data**2)  # noqa: E731
        return Tensor(self.data / other.data, (self, other), back)

    def __matmul__(self, other):
        def back(g):
            return g @ other.data.swapaxes(-1, -2), self.data.swapaxes(-1, -2) @ g

        return Tensor(self.data @ other.data, (self, other), back)

    def __getitem__(self, key):
        if isinstance(key, Tensor):
            key = key.data
        elif isinstance(key, tuple):
            key = tuple(part.data if isinstance(part, Tensor) else part for part in key)

        def back(g):
            spread = np.zeros_like(self.data)
            np.add.at(spread, key, g)
            return (spread,)

        return Tensor(self.data[key], (self,), back)

    def mean(self, dim, keepdim=False):
        count = self.shape[dim]
        return self.sum(dim, keepdim) / float(count)

    def sum(self, dim=None, keepdim=False):
        def back(g):
            wide = g if dim is None or keepdim else np.expand_dims(g, dim)
            return (np.broadcast_to(wide, self.shape),)

        return Tensor(self.data.sum(axis=dim, keepdims=keepdim), (self,), back)

    def reshape(self, *shape):
        back = lambda g: (g.reshape(self.shape),)  # noqa: E731
        return Tensor(self.data.reshape(shape), (self,), back)

    def transpose(self, one, other):
        back = lambda g: (g.swapaxes(one, other),)  # noqa: E731
        return Tensor(self.data.swapaxes(one, other), (self,), back)

    def split(self, size, dim):
        assert dim == -1
        return [self[..., at : at + size] for at in range(0, self.shape[-1], size)]

    def unsqueeze(self, dim):
        back = lambda g: (g.squeeze(dim),)  # noqa: E731
        return Tensor(np.expand_dims(self.data, dim), (self,), back)

    def squeeze(self, dim):
        back = lambda g: (np.expand_dims(g, dim),)  # noqa: E731
        return Tensor(self.data.squeeze(dim), (self,), back)

    def gather(self, dim, index):
        def back(g):
            spread = np.zeros_like(self.data)
            np.put_along_axis(spread, index.data, g, dim)
            return (spread,)

        return Tensor(np.take_along_axis(self.data, index.data, dim), (self,), back)

    def abs(self):
        back = lambda g: (g * np.sign(self.data),)  # noqa: E731
        return Tensor(np.abs(self.data), (self,), back)

    def max(self):
        assert not self.requires_grad
        return Tensor(self.data.max())

    def clamp(self, least, most):
        inside = (self.data >= least) & (self.data <= most)
        return Tensor(self.data.clip(least, most), (self,), lambda g: (g * inside,))


def _tensor(value):
    return value if isinstance(value, Tensor) else Tensor(np.float32(value))


def _fold(gradient, shape):
    """Sums over what was broadcast."""
    while gradient.ndim > len(shape):
        gradient = gradient.sum(0)
    wide = tuple(at for at, size in enumerate(shape) if size == 1 and gradient.shape[at] != 1)
    return gradient.sum(wide, keepdims=True) if wide else gradient


def from_numpy(array):
    return Tensor(array)


def exp(x):
    value = np.exp(x.data)
    return Tensor(value, (x,), lambda g: (g * value,))


def rsqrt(x):
    value = 1 / np.sqrt(x.data)
    return Tensor(value, (x,), lambda g: (g * -0.5 * value**3,))


def relu(x):
    return Tensor(np.maximum(x.data, 0), (x,), lambda g: (g * (x.data > 0),))


def minimum(one, other):
    first = one.data <= other.data
    back = lambda g: (g * first, g * ~first)  # noqa: E731
    return Tensor(np.minimum(one.data, other.data), (one, other), back)


def log_softmax(x, dim):
    shifted = x.data - x.data.max(dim, keepdims=True)
    value = shifted - np.log(np.exp(shifted).sum(dim, keepdims=True))
    back = lambda g: (g - np.exp(value) * g.sum(dim, keepdims=True),)  # noqa: E731
    return Tensor(value, (x,), back)


def _attention(queries, keys, values, is_causal):
    assert is_causal
    length, width = queries.shape[-2:]
    ahead = np.triu(np.full((length, length), -np.inf, np.float32), 1)
    scored = queries @ keys.transpose(-1, -2) * (width**-0.5) + Tensor(ahead)
    return exp(log_softmax(scored, -1)) @ values


def _clip_grad_norm_(parameters, most):
    length = np.sqrt(sum((parameter.grad**2).sum() for parameter in parameters))
    for parameter in parameters:
        parameter.grad = parameter.grad * min(1.0, most / (length + 1e-6))
    return Tensor(length)


class _Adam:
    def __init__(self, parameters, lr, betas):
        self.parameters, self.lr, self.betas, self.steps = list(parameters), lr, betas, 0
        self.means = [np.zeros_like(one.data) for one in self.parameters]
        self.squares = [np.zeros_like(one.data) for one in self.parameters]

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def step(self):
        self.steps += 1
        (b1, b2), n = self.betas, self.steps
        for parameter, mean, square in zip(self.parameters, self.means, self.squares, strict=True):
            mean += (1 - b1) * (parameter.grad - mean)
            square += (1 - b2) * (parameter.grad**2 - square)
            step = (mean / (1 - b1**n)) / (np.sqrt(square / (1 - b2**n)) + 1e-8)
            parameter.data = (parameter.data - self.lr * step).astype(np.float32)


nn = types.SimpleNamespace(
    functional=types.SimpleNamespace(scaled_dot_product_attention=_attention),
    utils=types.SimpleNamespace(clip_grad_norm_=_clip_grad_norm_),
)
optim = types.SimpleNamespace(Adam=_Adam)
