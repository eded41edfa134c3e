//! scratch
use bellerophon_apiserver::ApiServer;
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let path = std::env::args().nth(1).ok_or("usage: serve KUBECONFIG")?;
    let server = ApiServer::builder().listen("127.0.0.1:0".parse()?).start().await?;
    server.write_kubeconfig(path.as_ref())?;
    std::future::pending::<()>().await;
    Ok(())
}
