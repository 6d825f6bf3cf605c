"""The same labels by three accountants: ours, privacy loss distributions, and dp-accounting's RDP."""

from dp_accounting.rdp import RdpAccountant

from pate_fed.privacy import Accountant, ConfidentGNMax

accountant = Accountant()
accountant.spend(ConfidentGNMax(classes=10, threshold=200, sigma1=150, sigma2=40), queries=640, labels=283)
theirs = RdpAccountant().compose(accountant.to_dp_event())  # as noisy totals, which tell more than labels
print(f"this package's {accountant.epsilon(1e-5):.3f}")
print(f"privacy loss distributions of the noise {accountant.pld_epsilon(1e-5):.3f}")
print(f"dp-accounting's RDP {theirs.get_epsilon(1e-5):.3f}")
