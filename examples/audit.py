"""An audit: mechanisms are sampled on neighbouring votes, and held to what a ledger charges for them."""

from own_aggregator import GeometricMax

from pate_fed.privacy import SystemNoise, audit_all
from pate_fed.testing import check_mechanism

for result in audit_all(SystemNoise(), trials=2000):
    print(result.line())
print(check_mechanism(GeometricMax(scale=10), trials=2000))  # one of your own
