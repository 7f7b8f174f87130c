"""The HTTP process: reads an artifact, answers requests. Never imports torch or onnx."""
