"""From a trace, a hardware description and a budget to an offload plan. Imports no torch."""
