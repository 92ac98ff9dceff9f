
identity_onnxbad*
INPUT0FP32:abc