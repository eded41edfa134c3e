//! Slices: endpoints spread over objects of at most a hundred, changing as few of them as possible.
//!
//! In: the endpoints there should be, by family and ports; the slices there are. Out: slices to create, change and delete.
//! Holds: an endpoint stays in the slice it is in; no slice has more than [`ENDPOINTS_MAX`]; a service without endpoints
//! keeps one empty slice, so that its watchers see that it is known.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::pods::Family;

/// How many endpoints a slice has at most, as upstream.
pub(super) const ENDPOINTS_MAX: usize = 100;

/// What endpoints of one slice have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Common {
    pub(super) family: Family,
    pub(super) ports: Vec<EndpointPort>,
}

impl Common {
    /// Equal for equal ports, in whichever order; kept apart by family.
    fn key(&self) -> Key {
        let mut ports: Vec<_> = self.ports.iter().map(|port| format!("{port:?}")).collect();
        ports.sort();
        (self.family, ports)
    }

    fn of(slice: &EndpointSlice) -> Self {
        let family = if slice.address_type == "IPv6" {
            Family::V6
        } else {
            Family::V4
        };
        Self {
            family,
            ports: slice.ports.clone().unwrap_or_default(),
        }
    }
}

type Key = (Family, Vec<String>);

/// What to do with slices.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<EndpointSlice>,
}

/// What slices of one service look like.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// Name prefix, owner and labels of a new one. Those that are there get the labels.
    pub(super) meta: ObjectMeta,
    /// The families that keep an empty slice.
    pub(super) families: Vec<Family>,
}

/// Which endpoint it is, whatever becomes of it.
fn identity(endpoint: &Endpoint) -> String {
    let uid = endpoint
        .target_ref
        .as_ref()
        .and_then(|target| target.uid.as_deref())
        .unwrap_or_default();
    format!("{uid} {}", endpoint.addresses.join(" "))
}

/// The changes that lead from the slices there are to the endpoints there should be.
pub(super) fn plan(
    form: &Form,
    wanted: Vec<(Common, Endpoint)>,
    existing: &[Arc<EndpointSlice>],
) -> Changes {
    let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
    for (common, endpoint) in wanted {
        let group = groups
            .entry(common.key())
            .or_insert_with(|| Group::new(common));
        group.wanted.insert(identity(&endpoint), endpoint);
    }
    for slice in existing {
        let common = Common::of(slice);
        groups
            .entry(common.key())
            .or_insert_with(|| Group::new(common))
            .slices
            .push(slice.clone());
    }
    for family in &form.families {
        let empty = Common {
            family: *family,
            ports: Vec::new(),
        };
        if !groups
            .values()
            .any(|group| group.common.family == *family && !group.wanted.is_empty())
        {
            groups
                .entry(empty.key())
                .or_insert_with(|| Group::new(empty))
                .placeholder = true;
        }
    }
    let mut changes = Changes::default();
    groups
        .into_values()
        .for_each(|group| group.plan(form, &mut changes));
    changes
}

/// Slices and endpoints that have everything in common that slices have.
struct Group {
    common: Common,
    /// In the order of their identities, so that equal histories give equal slices.
    wanted: BTreeMap<String, Endpoint>,
    slices: Vec<Arc<EndpointSlice>>,
    placeholder: bool,
}

/// A slice as it will be.
struct Filled {
    /// All but its endpoints.
    slice: EndpointSlice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

impl Group {
    fn new(common: Common) -> Self {
        Self {
            common,
            wanted: BTreeMap::new(),
            slices: Vec::new(),
            placeholder: false,
        }
    }

    fn plan(mut self, form: &Form, changes: &mut Changes) {
        let mut filled: Vec<_> = std::mem::take(&mut self.slices)
            .into_iter()
            .map(|slice| self.keep(form, &slice))
            .collect();
        self.spread(&mut filled);
        let mut kept = 0;
        for Filled {
            mut slice,
            endpoints,
            changed,
        } in filled
        {
            let is_empty = endpoints.is_empty();
            slice.endpoints = Some(endpoints);
            if is_empty && !(self.placeholder && kept == 0) {
                changes.delete.push(slice);
                continue;
            }
            kept += 1;
            if changed {
                changes.update.push(slice);
            }
        }
        let left: Vec<_> = self.wanted.into_values().collect();
        for endpoints in left.chunks(ENDPOINTS_MAX) {
            changes
                .create
                .push(fresh(form, &self.common, endpoints.to_vec()));
            kept += 1;
        }
        if self.placeholder && kept == 0 {
            changes.create.push(fresh(form, &self.common, Vec::new()));
        }
    }

    /// The slice with those of its endpoints that are wanted, as they are now; they are no longer looked for elsewhere.
    fn keep(&mut self, form: &Form, slice: &EndpointSlice) -> Filled {
        let old = slice.endpoints.as_deref().unwrap_or_default();
        let endpoints: Vec<_> = old
            .iter()
            .filter_map(|endpoint| self.wanted.remove(&identity(endpoint)))
            .collect();
        let changed = endpoints != old || slice.metadata.labels != form.meta.labels;
        let mut slice = slice.clone();
        slice.metadata.labels.clone_from(&form.meta.labels);
        Filled {
            slice,
            endpoints,
            changed,
        }
    }

    /// Puts what is left into slices that are written anyway, then into the one that it fills best.
    fn spread(&mut self, filled: &mut [Filled]) {
        let room = |slice: &Filled| ENDPOINTS_MAX.saturating_sub(slice.endpoints.len());
        for slice in filled.iter_mut().filter(|slice| slice.changed) {
            self.pour(slice, room(slice));
        }
        if self.wanted.is_empty() {
            return;
        }
        let rest = self.wanted.len() % ENDPOINTS_MAX;
        let best = filled
            .iter_mut()
            .filter(|slice| rest > 0 && room(slice) >= rest)
            .min_by_key(|slice| room(slice));
        if let Some(slice) = best {
            self.pour(slice, rest);
        }
    }

    fn pour(&mut self, into: &mut Filled, count: usize) {
        for _ in 0..count {
            let Some((_, endpoint)) = self.wanted.pop_first() else {
                return;
            };
            into.endpoints.push(endpoint);
            into.changed = true;
        }
    }
}

fn fresh(form: &Form, common: &Common, endpoints: Vec<Endpoint>) -> EndpointSlice {
    EndpointSlice {
        metadata: form.meta.clone(),
        address_type: common.family.address_type().into(),
        ports: Some(common.ports.clone()),
        endpoints: Some(endpoints),
    }
}

#[cfg(test)]
mod tests;
