"""Bytes and arrays out of zip and npz files: bounded in size, checked by CRC, never unpickled."""

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable
from typing import BinaryIO

import numpy as np

from agentic_bpt.errors import InputError

# The largest published episode, quadruped, unpacks to 0.83 MB. A member that declares or holds more
# than this is no episode, and is refused before it fills the memory.
MAX_MEMBER_BYTES = 64 * 2**20

_LOCAL_HEADER_BYTES = 30  # APPNOTE 4.3.7: the fixed part, then name and extra field
_ENCRYPTED = 0x1  # APPNOTE 4.4.4: bit 0 of the general purpose flags
_UTF8 = 0x800  # bit 11
_ZIP_FAULTS = (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, EOFError, OSError)
_AGAIN = "download or copy it again"


def zip_entries(handle: BinaryIO, *, where: str) -> list[zipfile.ZipInfo]:
    """Read the central directory of a zip or npz file, and nothing else of it.

    Raises:
        InputError: it is not a whole zip file; what it seems to be instead is said.
    """
    try:
        with zipfile.ZipFile(handle) as archive:
            return archive.infolist()
    except _ZIP_FAULTS as error:
        raise InputError(f"{where}: {_instead_of_a_zip(handle)}") from error


def read_member(handle: BinaryIO, entry: zipfile.ZipInfo, *, where: str) -> bytes:
    """Unpack one member through a handle of its archive, holding no other state.

    zipfile would read the whole central directory again for each member (10,000 entries), or keep
    a file open in every process that reads episodes.

    Raises:
        InputError: too large, encrypted, cut short, packed in an unknown way, or damaged.
    """
    if max(entry.file_size, entry.compress_size) > MAX_MEMBER_BYTES:
        raise InputError(
            f"{where}: unpacks to {entry.file_size:,} bytes, more than any episode has "
            f"({MAX_MEMBER_BYTES:,}): refused unread; download the archive again"
        )
    if entry.flag_bits & _ENCRYPTED:
        raise InputError(f"{where}: is encrypted: unpack it with its password first")
    handle.seek(max(entry.header_offset, 0))  # a damaged directory can give a negative one
    header = handle.read(_LOCAL_HEADER_BYTES)
    if len(header) < _LOCAL_HEADER_BYTES or header[:4] != b"PK\x03\x04":
        raise InputError(f"{where}: is damaged (no member where the directory says): {_AGAIN}")
    name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
    name = handle.read(name_bytes).decode(
        "utf-8" if entry.flag_bits & _UTF8 else "cp437", "replace"
    )
    if name != entry.orig_filename:
        raise InputError(f"{where}: is damaged (its name in the directory differs): {_AGAIN}")
    handle.seek(extra_bytes, io.SEEK_CUR)
    data = _unpack(handle.read(entry.compress_size), entry, where=where)
    if len(data) != entry.file_size or zlib.crc32(data) != entry.CRC:
        raise InputError(f"{where}: is damaged (its checksum or size is wrong): {_AGAIN}")
    return data


def read_arrays(handle: BinaryIO, keys: Iterable[str], *, where: str) -> dict[str, np.ndarray]:
    """Read those of the named arrays that an npz file holds; further keys stay unread.

    Raises:
        InputError: naming `where`, the key and what is wrong.
    """
    entries = {entry.filename: entry for entry in zip_entries(handle, where=where)}
    arrays = {}
    for key in keys:
        entry = entries.get(f"{key}.npy")
        if entry is not None:
            at = f"{where}: key {key!r}"
            arrays[key] = _array(read_member(handle, entry, where=at), where=at)
    return arrays


def _unpack(packed: bytes, entry: zipfile.ZipInfo, *, where: str) -> bytes:
    if entry.compress_type == zipfile.ZIP_STORED:
        return packed
    if entry.compress_type != zipfile.ZIP_DEFLATED:
        raise InputError(
            f"{where}: is packed in a way other than deflate (method {entry.compress_type}): "
            "unpack and zip it again"
        )
    try:
        # One byte beyond the declared size tells a member that holds more than it declares,
        # without ever unpacking that more.
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        return unpacker.decompress(packed, entry.file_size + 1)
    except zlib.error as error:
        raise InputError(f"{where}: is damaged ({error}): {_AGAIN}") from error


def _array(data: bytes, *, where: str) -> np.ndarray:
    """View the bytes of a .npy file as the array that they hold."""
    stream = io.BytesIO(data)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        read_header = readers[np.lib.format.read_magic(stream)]
        shape, fortran_order, dtype = read_header(stream)
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise InputError(f"{where}: is not a NumPy array: write it with numpy.savez") from error
    if dtype.hasobject:
        raise InputError(
            f"{where}: holds pickled Python objects, which can run code and are never loaded: "
            f"save it as float32, got dtype {dtype}"
        )
    if dtype.kind not in "fiu":
        raise InputError(f"{where}: must hold numbers: save it as float32, got dtype {dtype}")
    values = memoryview(data)[stream.tell() :]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(values):
        raise InputError(
            f"{where}: holds {len(values):,} bytes where its header says {dtype} {list(shape)}: "
            f"{_AGAIN}"
        )
    array = np.frombuffer(values, dtype)
    return array.reshape(shape[::-1]).T if fortran_order else array.reshape(shape)


def _instead_of_a_zip(handle: BinaryIO) -> str:
    """Say what a file that is not a zip seems to be."""
    handle.seek(0)
    start = handle.read(64).lstrip().lower()
    size = handle.seek(0, io.SEEK_END)
    if start.startswith(b"<"):
        return "is a web page (HTML), not data: the download went wrong; download it again"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not data: run git lfs pull"
    if size == 0:
        return f"is empty (0 bytes): {_AGAIN}"
    if start.startswith(b"pk"):
        return f"is cut short or damaged ({size:,} bytes): {_AGAIN}"
    return f"is not a zip or npz file ({size:,} bytes, starts with {start[:8]!r}): {_AGAIN}"
