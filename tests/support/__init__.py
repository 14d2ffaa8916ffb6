"""What the tests share: servers, waiting, builders."""
