"""Packs a program that is built already into a wheel, for checks that have no time to build it again:

    python3 scripts/pack_wheel.py target/release/spattn FOLDER

The wheel is for this machine. What is published is built by scripts/build_wheel.sh, with the same contents: the program and its metadata.
"""

import base64
import hashlib
import pathlib
import platform
import re
import sys
import zipfile

binary, folder = map(pathlib.Path, sys.argv[1:])
root = pathlib.Path(__file__).resolve().parent.parent
version = re.search(r'^version = "(.+)"$', (root / "Cargo.toml").read_text(), re.MULTILINE).group(1)
tag = f"py3-none-linux_{platform.machine()}"
name, info = f"spattn-{version}", f"spattn-{version}.dist-info"
files = {
    f"{name}.data/scripts/spattn": binary.read_bytes(),
    f"{info}/METADATA": f"Metadata-Version: 2.1\nName: spattn\nVersion: {version}\n".encode(),
    f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: pack_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
}


def line(path, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


record = "".join(line(path, data) for path, data in files.items()) + f"{info}/RECORD,,\n"
files[f"{info}/RECORD"] = record.encode()
folder.mkdir(parents=True, exist_ok=True)
wheel = folder / f"{name}-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
    for path, data in files.items():
        entry = zipfile.ZipInfo(path)
        entry.external_attr = (0o100755 if path.endswith("/spattn") else 0o100644) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        archive.writestr(entry, data)
print(wheel)
