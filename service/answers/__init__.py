"""From arrays to bytes: embeddings, attention, JSON, base64 and safetensors."""
