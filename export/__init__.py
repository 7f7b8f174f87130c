"""Pretrained weights or a configuration in, a verified ONNX artifact out."""
