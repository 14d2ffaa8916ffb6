"""The machinery that services stand on: ports, their twins, web, supervision."""
