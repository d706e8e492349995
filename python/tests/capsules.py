"""DLPack capsules made by hand: a producer whose every field a test may set, and a reader of capsules."""

import ctypes as c


CPU, CUDA, CUDA_HOST, VULKAN, METAL, CUDA_MANAGED, WEB_GPU = 1, 2, 3, 7, 8, 13, 15
INT, UINT, FLOAT, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 4, 5, 6
READ_ONLY, IS_COPIED = 1, 2


class Device(c.Structure):
    _fields_ = [("type", c.c_int32), ("number", c.c_int32)]


class DataType(c.Structure):
    _fields_ = [("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16)]


class Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device", Device),
        ("ndim", c.c_int32),
        ("dtype", DataType),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


Deleter = c.CFUNCTYPE(None, c.c_void_p)


class Legacy(c.Structure):
    _fields_ = [("tensor", Tensor), ("context", c.c_void_p), ("deleter", Deleter)]


class Versioned(c.Structure):
    _fields_ = [
        ("major", c.c_uint32),
        ("minor", c.c_uint32),
        ("context", c.c_void_p),
        ("deleter", Deleter),
        ("flags", c.c_uint64),
        ("tensor", Tensor),
    ]


_new = c.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
_name = c.pythonapi.PyCapsule_GetName
_name.restype, _name.argtypes = c.c_char_p, [c.py_object]
_pointer = c.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
_rename = c.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = c.c_int, [c.py_object, c.c_char_p]

# Capsules keep pointers to their names.
NAMES = {True: (b"dltensor_versioned", b"used_dltensor_versioned"), False: (b"dltensor", b"used_dltensor")}
CODES = {"i": INT, "u": UINT, "f": FLOAT, "c": COMPLEX, "b": BOOL}


def name_of(capsule):
    return _name(capsule).decode()


def read(capsule):
    """Returns the structure in a capsule that no consumer has taken."""
    versioned = name_of(capsule) == "dltensor_versioned"
    kind = Versioned if versioned else Legacy
    return kind.from_address(_pointer(capsule, NAMES[versioned][0]))


def take(capsule):
    """Takes the structure out as a consumer does, and returns it: its deleter is the caller's to call."""
    managed = read(capsule)
    assert _rename(capsule, NAMES[isinstance(managed, Versioned)][1]) == 0
    return managed


def delete(managed):
    managed.deleter(c.addressof(managed))


class Producer:
    """An object with `__dlpack__` over an array's memory. Fields are set by keywords before the capsule is made.

    `deleted` counts calls of the deleter. Producers stay alive until the tests end, so that a deleter that runs late, or twice,
    is counted and does no harm.
    """

    _all = []

    def __init__(self, array=None, *, versioned=True, device=(CPU, 0), told_device=None, **fields):
        self.array = array
        self.versioned = versioned
        self.device = told_device or device
        self.deleted = 0
        self._all.append(self)
        self.calls = []
        self.capsules = []
        shape = array.shape if array is not None else ()
        strides = [stride // array.itemsize for stride in array.strides] if array is not None else ()
        shape = fields.pop("shape", shape)
        strides = fields.pop("strides", strides)
        self.sizes = (c.c_int64 * max(len(shape), 1))(*shape) if shape is not None else None
        self.steps = (c.c_int64 * max(len(strides), 1))(*strides) if strides is not None else None
        tensor = Tensor(
            data=fields.pop("data", array.ctypes.data if array is not None else None),
            device=Device(*device),
            ndim=fields.pop("ndim", len(shape) if shape is not None else 0),
            dtype=DataType(*fields.pop("dtype", self._dtype(array))),
            shape=c.cast(self.sizes, c.POINTER(c.c_int64)) if self.sizes is not None else None,
            strides=c.cast(self.steps, c.POINTER(c.c_int64)) if self.steps is not None else None,
            byte_offset=fields.pop("byte_offset", 0),
        )
        self._deleter = Deleter(self._on_delete)
        if fields.pop("no_deleter", False):
            self._deleter = Deleter()
        if versioned:
            major, minor = fields.pop("version", (1, 0))
            self.managed = Versioned(
                major=major, minor=minor, deleter=self._deleter, flags=fields.pop("flags", 0), tensor=tensor
            )
        else:
            self.managed = Legacy(tensor=tensor, deleter=self._deleter)
        assert not fields, fields

    @staticmethod
    def _dtype(array):
        if array is None:
            return (FLOAT, 32, 1)
        return (CODES[array.dtype.kind], array.itemsize * 8, 1)

    def _on_delete(self, address):
        assert address == c.addressof(self.managed)
        self.deleted += 1

    def capsule(self):
        return _new(c.addressof(self.managed), NAMES[self.versioned][0], None)

    def __dlpack__(self, **keywords):
        self.calls.append(keywords)
        if not self.versioned and "max_version" in keywords:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        self.capsules.append(self.capsule())
        return self.capsules[-1]

    def __dlpack_device__(self):
        return self.device

    @property
    def consumed(self):
        return name_of(self.capsules[-1]).startswith("used_")
