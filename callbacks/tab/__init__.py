"""TensorBoard's tab "Support": which answers are lost, at which step, and what the model wrote."""
