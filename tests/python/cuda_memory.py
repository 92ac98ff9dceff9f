"""A client's memory on a CUDA card, over the driver's own interface: tritonclient's helpers need bindings of CUDA's
runtime, which does not run on the stand-in."""

import base64
import ctypes

import numpy as np

HANDLE_BYTES = 64


class Driver:
    """The driver of a card, in the client's process."""

    def __init__(self, library, device=0):
        self.library = ctypes.CDLL(library)
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name} answered {status}"


class Region:
    """Memory on a card that another process may open."""

    def __init__(self, driver, size):
        self.driver, self.size = driver, size
        self.address = ctypes.c_uint64()
        driver.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(size))

    def raw_handle(self):
        """Returns the driver's handle in base64, as clients send it."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        self.driver.call("cuIpcGetMemHandle", handle, self.address)
        return base64.b64encode(handle.raw)

    def write(self, values, offset=0):
        data = np.ascontiguousarray(values).tobytes()
        self.driver.call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address.value + offset), data, ctypes.c_size_t(len(data)))

    def read(self, dtype, shape, offset=0):
        values = np.empty(shape, dtype)
        at = ctypes.c_uint64(self.address.value + offset)
        self.driver.call("cuMemcpyDtoH_v2", values.ctypes.data_as(ctypes.c_void_p), at, ctypes.c_size_t(values.nbytes))
        return values

    def free(self):
        self.driver.call("cuMemFree_v2", self.address)
