"""Let people answer through any interface: identify and verify them, sign their answers, and audit what they did."""
