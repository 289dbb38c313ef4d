"""The instrument: what a WebGPU dispatch really costs, with raw samples, environment and honest statistics."""
