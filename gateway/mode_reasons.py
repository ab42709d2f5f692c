"""Why a mode was used: a closed set, each with the words that a client reads and the value of a metric's label."""

from __future__ import annotations

ASKED = "asked for by the request"
SERVER = "set by the server"
LEFT = "left to the verifier"
OFFERS = "the verifier offers candidates"
STEERED = "requests of this kind do better without drafts here"
NO_HEAD = "the verifier has no draft head"
DOES_NOT_PAY = "the verifier expects plain decoding to be faster"

SHORT = {
    ASKED: "request",
    SERVER: "server",
    LEFT: "left",
    OFFERS: "verifier_offers",
    STEERED: "policy",
    NO_HEAD: "no_head",
    DOES_NOT_PAY: "verifier_does_not_pay",
}
