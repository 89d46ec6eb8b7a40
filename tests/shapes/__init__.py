"""Model shapes: whatever a model looks like, its outputs have the law of weight draws, or there is a clear refusal."""
