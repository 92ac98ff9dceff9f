"""JSON schemas of kinds that extend Kubernetes, derived from the classes of their Python clients. The classes are read
as source text and not run, because the clients have dependencies and only their fields are needed. Unknown fields are
rejected."""

import ast
import re
from functools import lru_cache

META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
#: The module of each kind's class.
KINDS = {
    "ScaledObject": ("cloudcoil/models/keda/v1alpha1.py", "ScaledObject"),
    "ServiceMonitor": ("cloudcoil/models/prometheus_operator/v1.py", "ServiceMonitor"),
    "ClusterServingRuntime": ("kserve/models/v1*_*.py", "V1alpha1ClusterServingRuntime"),
    "InferenceService": ("kserve/models/v1*_*.py", "V1beta1InferenceService"),
}
SCALARS = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
    "object": {},
    "datetime": {"type": "string"},
}


def reference(name):
    return {"$ref": f"#/$defs/{name}"}


def kubernetes(name):
    """Returns the schema of one of Kubernetes' own types."""
    return {"$ref": f"/api/_definitions.json#/$defs/{name}"}


def of_annotation(node):
    """Returns the schema of a type as pydantic's classes write it: Optional[List[Trigger]]."""
    if isinstance(node, ast.Name):
        return SCALARS.get(node.id) or reference(node.id)
    if isinstance(node, ast.Attribute):
        assert ast.unparse(node) == "apimachinery.ObjectMeta", ast.unparse(node)
        return kubernetes(META)
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    generic = ast.unparse(node.value)
    if generic == "Literal":
        return {"enum": [part.value for part in parts]}
    if generic == "Union":
        return {"anyOf": [of_annotation(part) for part in parts]}
    inner = of_annotation(parts[1] if generic == "Dict" else parts[0])
    return {
        "Optional": inner,
        "Annotated": inner,
        "List": {"type": "array", "items": inner},
        "Dict": {"type": "object", "additionalProperties": inner},
    }[generic]


def alias(node):
    """Returns the name of a field in a manifest, if the class names it otherwise."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            return next((one.value.value for one in call.keywords if one.arg == "alias"), None)
    return None


def of_pydantic(node):
    base = node.bases[0]
    if ast.unparse(base).startswith("RootModel"):
        return of_annotation(base.slice)
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
    named = {alias(one.annotation) or one.target.id: one for one in fields}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: of_annotation(one.annotation) for name, one in named.items()},
        "required": [name for name, one in named.items() if one.value is None],
    }


def of_text(text, known):
    """Returns the schema of a type as OpenAPI's classes write it: list[V1Container]."""
    inner = re.fullmatch(r"list\[(.*)\]|dict\(str, (.*)\)", text)
    if inner and inner[1]:
        return {"type": "array", "items": of_text(inner[1], known)}
    if inner:
        return {"type": "object", "additionalProperties": of_text(inner[2], known)}
    if text in SCALARS or text in known:
        return SCALARS[text] if text in SCALARS else reference(text)
    if text == "V1ObjectMeta":
        return kubernetes(META)
    # Kubernetes' own types are V1…; types of other extensions are accepted unchecked.
    return kubernetes(f"io.k8s.api.core.v1.{text[2:]}") if re.match(r"V1[A-Z]", text) else {}


def of_openapi(node, known):
    """Returns the schema of a class. Required fields are left out, because these classes have them only in code."""
    tables = {one.targets[0].id: one.value for one in node.body if isinstance(one, ast.Assign)}
    types, names = (ast.literal_eval(tables[table]) for table in ("openapi_types", "attribute_map"))
    properties = {names[field]: of_text(text, known) for field, text in types.items()}
    return {"type": "object", "additionalProperties": False, "properties": properties}


@lru_cache(maxsize=None)
def schema_of(clients, kind):
    """Returns the schema of a kind, from the folder of the clients' sources."""
    pattern, root = KINDS[kind]
    trees = [ast.parse(path.read_text()) for path in sorted(clients.glob(pattern))]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    openapi = pattern.startswith("kserve/")
    definitions = {name: of_openapi(node, classes) if openapi else of_pydantic(node) for name, node in classes.items()}
    return {**reference(root), "$defs": definitions}
