//! What every cluster does, with or without workloads.

mod answer; // what a refusal means
mod each_namespace; // what every namespace has
mod kinds; // what the server serves

mod class_protection; // classes of storage that are in use stay
mod cluster_role; // roles that are the sum of others
mod endpoints; // where the pods of a service are
mod garbage; // what belongs to an object goes with it
mod namespace; // a namespace goes with everything in it
mod root_ca; // whom pods trust
mod service_account; // whom pods run as
mod ttl_after_finished; // jobs that nobody needs any more
mod volume_protection; // storage that is in use stays

use crate::context::{Context, Loop};

/// The loops of this level, in the order in which they start.
pub(crate) fn loops(ctx: &Context) -> Vec<Loop> {
    let mut loops = vec![
        service_account::controller(ctx),
        cluster_role::controller(ctx),
        namespace::controller(ctx),
        garbage::collector(ctx),
        volume_protection::claims(ctx),
        volume_protection::volumes(ctx),
        class_protection::classes(ctx),
        ttl_after_finished::controller(ctx),
    ];
    loops.extend(root_ca::controller(ctx));
    loops.extend(endpoints::controllers(ctx));
    loops
}
