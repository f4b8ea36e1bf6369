"""Networks in torch: what algorithms learn with by autograd. Imports no algorithm and no environment."""
