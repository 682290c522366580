"""Remote pools: clients, agents, nodes, and the links between them."""
