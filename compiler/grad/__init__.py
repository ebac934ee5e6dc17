"""From an inference graph to a training step: loss, backward pass, optimizer, state manifest."""
