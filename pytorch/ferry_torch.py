"""The stitching allocator for PyTorch.

    import ferry_torch
    ferry_torch.enable()        # before anything is on the GPU

From then on all CUDA memory of this process comes from it, on every stream; record_stream, torch.cuda.empty_cache() and
out-of-memory errors (a RuntimeError) work as usual. torch.cuda.memory_allocated() and its kin know only PyTorch's own allocator:
stats() is their replacement. CUDA graphs with private memory pools and sharing of CUDA tensors between processes are not
supported."""
import ctypes
import os

_FIELDS = [
    "live_bytes", "peak_live_bytes", "reserved_bytes", "peak_reserved_bytes", "requests", "frees",
    "s1", "s2", "s3", "s4", "s5", "creates", "releases", "maps", "unmaps", "allows", "reserves",
    "stitched_bytes", "sblocks", "sblocks_dropped", "adopted_bytes",
]
_library = None
_allocator = None


class _Stats(ctypes.Structure):  # ferry_stitch_stats
    _fields_ = [(name, ctypes.c_int64) for name in _FIELDS]


def _find(library):
    here = os.path.dirname(os.path.abspath(__file__))
    places = [library, os.environ.get("FERRY_TORCH_LIBRARY"), os.path.join(here, "libferry_torch.so"),
              os.path.join(here, "..", "build", "lib", "libferry_torch.so"), os.path.join(here, "..", "libferry_torch.so")]
    for path in places:
        if path and os.path.exists(path):
            return os.path.abspath(path)
    raise FileNotFoundError("libferry_torch.so: name it in FERRY_TORCH_LIBRARY, or build it with CUDA (nvcc)")


def enable(library=None, limit_bytes=0, large_chunk=0, max_sblocks=0):
    """Makes the stitching allocator PyTorch's. limit_bytes: most device memory it may hold; 0 is the default of each."""
    global _library, _allocator
    if _allocator is not None:
        return
    import torch

    path = _find(library)
    _library = ctypes.CDLL(path)
    _library.ferry_torch_setup.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int]
    _library.ferry_torch_stats.restype = ctypes.c_bool
    _library.ferry_torch_snapshot.restype = ctypes.c_bool
    torch_cpu = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    _library.ferry_torch_setup(ctypes.cast(torch_cpu.aoti_torch_check, ctypes.c_void_p), limit_bytes, large_chunk, max_sblocks)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, "ferry_torch_alloc", "ferry_torch_free")
    address = lambda name: ctypes.cast(getattr(_library, name), ctypes.c_void_p).value
    allocator.allocator().set_record_stream_fn(address("ferry_torch_record_stream"))
    allocator.allocator().set_reset_fn(address("ferry_torch_empty_cache"))
    torch.cuda.memory.change_current_allocator(allocator)
    _allocator = allocator


def stats(device=0):
    """A dictionary: live_bytes, reserved_bytes, their peaks, requests by state (s1 to s5), virtual memory calls."""
    s = _Stats()
    if _library is not None:
        _library.ferry_torch_stats(device, ctypes.byref(s))
    return {name: getattr(s, name) for name in _FIELDS}


def reset_peaks(device=0):
    if _library is not None:
        _library.ferry_torch_reset_peaks(device)


def empty_cache():
    """Gives the memory back to the device that holds nothing."""
    if _library is not None:
        _library.ferry_torch_empty_cache()


def snapshot(path, device=0):
    """Writes all blocks as JSON."""
    if _library is None or not _library.ferry_torch_snapshot(device, os.fsencode(path)):
        raise RuntimeError(f"no snapshot of device {device} in {path}")
