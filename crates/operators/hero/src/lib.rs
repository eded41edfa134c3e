//! The Bellerophon operator: installs, upgrades, scales, backs up and heals the replicated store.
