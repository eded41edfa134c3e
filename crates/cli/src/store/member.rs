//! `bellerophon store member`: formats, adds, promotes and removes members.
//!
//! Guarantees: promotion and removal are compare-and-set on the membership that was read, so a
//! concurrent change is never undone.

use std::{collections::BTreeSet, io::Write};

use bellerophon_store_client::{
    Client,
    api::{ChangeMembershipRequest, ClusterId, InitializeRequest, MemberId, Status},
};
use clap::{Args, Subcommand};
use serde::Serialize;

use super::{connection::Connection, print_json, print_line};
use crate::{error::CliError, flags::OutputFormat};

/// Entries that a learner may lack when it is promoted: it catches up within a second.
const PROMOTE_LAG_MAX: u64 = 1000;

#[derive(Debug, Args)]
pub(super) struct MemberArguments {
    #[command(subcommand)]
    command: MemberCommand,
}

#[derive(Debug, Subcommand)]
enum MemberCommand {
    /// Print the members of the cluster
    List {
        /// The format of stdout: a table, or one JSON object per line
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
        #[command(flatten)]
        connection: Connection,
    },
    /// Format the member at the endpoint as the only voter of a new cluster
    Initialize {
        /// The id of the new cluster, such as a UUID
        #[arg(long, value_name = "ID", value_parser = cluster_id)]
        cluster_id: ClusterId,
        /// The id of the member
        #[arg(long, value_name = "ID", default_value = "1")]
        member_id: MemberId,
        /// The address of its peer listener, as other members reach it
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Print an id for a new member
    Allocate {
        #[command(flatten)]
        connection: Connection,
    },
    /// Format the member at the endpoint, before it is added
    Format {
        /// The id of the cluster
        #[arg(long, value_name = "ID", value_parser = cluster_id)]
        cluster_id: ClusterId,
        /// An id of `bellerophon store member allocate`
        #[arg(long, value_name = "ID")]
        member_id: MemberId,
        #[command(flatten)]
        connection: Connection,
    },
    /// Add a formatted member as a learner
    Add {
        #[arg(value_name = "ID")]
        id: MemberId,
        /// The address of its peer listener, as other members reach it
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        #[command(flatten)]
        connection: Connection,
    },
    /// Make a learner a voter
    Promote {
        #[arg(value_name = "ID")]
        id: MemberId,
        #[command(flatten)]
        connection: Connection,
    },
    /// Remove a member from the cluster
    Remove {
        #[arg(value_name = "ID")]
        id: MemberId,
        #[command(flatten)]
        connection: Connection,
    },
    /// Hand leadership over to a voter
    TransferLeader {
        #[arg(value_name = "ID")]
        id: MemberId,
        #[command(flatten)]
        connection: Connection,
    },
}

/// Accepts a cluster id.
pub(super) fn cluster_id(text: &str) -> Result<ClusterId, String> {
    text.parse().map_err(|error| format!("{error}"))
}

pub(super) async fn member(
    arguments: MemberArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    match arguments.command {
        MemberCommand::List { output, connection } => {
            let status = leader_status(&connection.client()?).await?;
            list(&status, output, out)
        }
        MemberCommand::Initialize {
            cluster_id,
            member_id,
            address,
            connection,
        } => {
            let request = InitializeRequest {
                cluster_id: cluster_id.clone(),
                member_id,
                address,
            };
            let client = connection.client()?;
            client.initialize(&request).await.map_err(CliError::new)?;
            print_line(out, &format!("cluster {cluster_id} has member {member_id}"))
        }
        MemberCommand::Allocate { connection } => {
            let id = connection.client()?.allocate_member_id().await;
            print_line(out, &id.map_err(CliError::new)?.to_string())
        }
        MemberCommand::Format {
            cluster_id,
            member_id,
            connection,
        } => {
            let client = connection.client()?;
            let formatted = client.format(cluster_id, member_id).await;
            formatted.map_err(CliError::new)?;
            print_line(out, &format!("member {member_id} is formatted"))
        }
        MemberCommand::Add {
            id,
            address,
            connection,
        } => {
            let added = connection.client()?.add_learner(id, &address).await;
            added.map_err(CliError::new)?;
            print_line(out, &format!("member {id} is a learner"))
        }
        MemberCommand::Promote { id, connection } => promote(&connection.client()?, id, out).await,
        MemberCommand::Remove { id, connection } => remove(&connection.client()?, id, out).await,
        MemberCommand::TransferLeader { id, connection } => {
            let transferred = connection.client()?.transfer_leader(id).await;
            transferred.map_err(CliError::new)?;
            print_line(out, &format!("member {id} is the leader"))
        }
    }
}

/// The status of the leader, or of any member without one.
async fn leader_status(client: &Client) -> Result<Status, CliError> {
    let leader = client.leader().await.map_err(CliError::new)?;
    let client = leader.as_ref().unwrap_or(client);
    client.status().await.map_err(CliError::new)
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    id: MemberId,
    address: &'a str,
    role: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    lag: Option<u64>,
}

fn list(status: &Status, output: OutputFormat, out: &mut impl Write) -> Result<(), CliError> {
    if output == OutputFormat::Text {
        print_line(out, "ID\tADDRESS\tROLE\tLAG")?;
    }
    for (id, member) in &status.membership.members {
        let role = if status.leader == Some(*id) {
            "Leader"
        } else if status.membership.voters.contains(id) {
            "Voter"
        } else {
            "Learner"
        };
        let row = Row {
            id: *id,
            address: &member.address,
            role,
            lag: status
                .replication
                .get(id)
                .map(|replication| replication.lag),
        };
        match output {
            OutputFormat::Json => print_json(out, &row)?,
            OutputFormat::Text => {
                let lag = row.lag.map_or("-".to_owned(), |lag| lag.to_string());
                print_line(out, &format!("{id}\t{}\t{role}\t{lag}", row.address))?;
            }
        }
    }
    Ok(())
}

async fn promote(client: &Client, id: MemberId, out: &mut impl Write) -> Result<(), CliError> {
    let status = leader_status(client).await?;
    if !status.membership.learners.contains(&id) {
        return Err(CliError::Failed(format!("member {id} is no learner"))
            .with_hint("add it with `bellerophon store member add`"));
    }
    let lag = status
        .replication
        .get(&id)
        .map(|replication| replication.lag);
    if lag.is_none_or(|lag| lag > PROMOTE_LAG_MAX) {
        let lag = lag.map_or("all".to_owned(), |lag| lag.to_string());
        return Err(
            CliError::Failed(format!("member {id} lacks {lag} entries of the log"))
                .with_hint("wait until `bellerophon store member list` shows less, and retry"),
        );
    }
    let mut voters = status.membership.voters.clone();
    voters.insert(id);
    change(client, &status, voters).await?;
    print_line(out, &format!("member {id} is a voter"))
}

async fn remove(client: &Client, id: MemberId, out: &mut impl Write) -> Result<(), CliError> {
    let status = leader_status(client).await?;
    if !status.membership.members.contains_key(&id) {
        return Err(
            CliError::Failed(format!("member {id} is not in the cluster"))
                .with_hint("`bellerophon store member list` prints the members"),
        );
    }
    let mut voters = status.membership.voters.clone();
    voters.remove(&id);
    let mut remaining = status.clone();
    remaining.membership.learners.remove(&id);
    change(client, &remaining, voters).await?;
    print_line(
        out,
        &format!("member {id} is removed; stop it, and never use its data again"),
    )
}

/// Sets the voters; the learners of the status that are no voters stay.
async fn change(
    client: &Client,
    status: &Status,
    voters: BTreeSet<MemberId>,
) -> Result<(), CliError> {
    let learners = status.membership.learners.difference(&voters).copied();
    let request = ChangeMembershipRequest {
        learners: learners.collect(),
        voters,
        expected_membership_index: status.membership.index,
    };
    client
        .change_membership(&request)
        .await
        .map_err(CliError::new)
}
