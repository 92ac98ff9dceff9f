
identity_onnx