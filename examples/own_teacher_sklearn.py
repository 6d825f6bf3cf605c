"""A teacher of scikit-learn's in a study with 250 parties: any classifier works as it is."""

from sklearn.linear_model import LogisticRegression

from pate_fed import simulate

if __name__ == "__main__":
    run = simulate({"parties": {"num_clients": 250}}, teacher=LogisticRegression(C=0.1, max_iter=200))
    print(run)
