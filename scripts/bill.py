"""Bills of materials, in CycloneDX, of the packages that contain ONNX Runtime's library besides the program: the Debian
package and the image. The image's build runs this file on its own, so it needs only the standard library.

    python bill.py BILL WHEEL TARGET

BILL is the program's bill, as cargo-cyclonedx writes it; WHEEL is the wheel that the library is taken from.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

NAME = "paternoster.cyclonedx.json"
LIBRARY = "onnxruntime"


def with_library(text, version, digest):
    """Returns the program's bill, given as text, with the library of a wheel of this version and SHA-256 added."""
    # The bill contains the path of the folder that the program was built in.
    bill = json.loads(re.sub(r"path\+file://[^#\"]*#", "", text))
    purl = f"pkg:pypi/{LIBRARY}@{version}"
    bill["components"].append(
        {
            "type": "library",
            "bom-ref": purl,
            "name": LIBRARY,
            "version": version,
            "description": "its shared library, out of the wheel whose hash this is",
            "purl": purl,
            "licenses": [{"expression": "MIT"}],
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
    )
    top = bill["metadata"]["component"]["bom-ref"]
    (of_program,) = [one for one in bill["dependencies"] if one["ref"] == top]
    of_program.setdefault("dependsOn", []).append(purl)
    bill["dependencies"].append({"ref": purl})
    return json.dumps(bill, indent=1)


def main(given, wheel, target):
    name, version, *_ = Path(wheel).name.split("-")
    if name != LIBRARY:
        sys.exit(f"{wheel} is a wheel of {name}, expected {LIBRARY}")
    digest = hashlib.sha256(Path(wheel).read_bytes()).hexdigest()
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(with_library(Path(given).read_text(), version, digest))


if __name__ == "__main__":
    main(*sys.argv[1:])
